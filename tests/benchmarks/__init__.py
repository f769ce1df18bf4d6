"""The benchmarks: every speed that NeuronScope owes, beside the peers, in one run.

    python -m tests.benchmarks [GROUP …]      prints one JSON object a figure, writes benchmarks.json
    python -m tests.benchmarks --docs         writes docs/performance.md from benchmarks.json

A group is one module (`GROUPS` in `__main__`) that yields `Figure`s.  Peers run in environments of their
own under `.bench/`, made at the first run.  Two measures do not mind a loaded machine, and goals stand on
them: instructions counted by callgrind, and thread CPU time of interleaved rounds, compared within one run.
"""
