"""``python -m tests.faults [controls]``: each fault, then as many runs without any; a line for each."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.faults.laboratory import Laboratory
from tests.faults.retrieval import FAULTS

from neuronscope.engine.guard import GUARD


def main(controls: int) -> None:
    """Print what was found."""
    GUARD.reraise = True
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        laboratory = Laboratory(Path(folder))
        print(f"ready in {time.perf_counter() - began:.1f} s")
        for number, fault in enumerate([*FAULTS, *[None] * controls]):
            began = time.perf_counter()
            outcome = laboratory.run(fault, number)
            name = fault.name if fault is not None else "no change"
            raised = ", ".join(outcome.raised) or "nothing"
            print(
                f"{name:28} {raised:24} after {outcome.queries} queries, {time.perf_counter() - began:.1f} s"
            )
            for finding in outcome.findings:
                print(f"    {finding.summary}")
                for evidence in finding.evidence:
                    print(f"        {evidence}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else len(FAULTS))
