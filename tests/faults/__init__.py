"""The fault laboratory: a real service, scripted faults, and what the agent makes of them.

    python -m tests.faults            # every fault and as many controls, as a table

A `Fault` says what is broken and which finding it must lead to; `Laboratory.run` breaks it and collects the
findings.  Faults are added to `tests.faults.retrieval.FAULTS`, or to a list of another stage.
"""
