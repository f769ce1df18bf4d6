"""Looking at recordings: the trace tree in the terminal, and the same as JSON."""
