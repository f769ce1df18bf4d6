"""The demo: two ordinary programs, their data, and what starts and stops them.

`service.py` is a question-answering service and `transformers serve` is the model behind
it; neither knows of NeuronScope.  `models.py` prepares the real models, `runner.py`
supervises the two processes for `neuronscope demo`.
"""
