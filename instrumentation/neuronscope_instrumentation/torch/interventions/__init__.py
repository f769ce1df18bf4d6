"""Interventions in PyTorch models: the model runs in a greenlet, the user's code where it stands."""
