"""``python -m tests.faults``: what ``ns.compare`` makes of every fault and of days without one, as a table.

python -m tests.faults                        # all faults with one seed, and 14 controls
python -m tests.faults -s 2 -c 105 --set 1     # seeds and users that nobody has looked at
python -m tests.faults "embedder" -c 0 -v     # some, with their evidence
python -m tests.faults -s 0 -c 105 --json     # controls alone, for programs
python -m tests.faults --live                 # the faults of retrieval, told live by drift and canaries
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from neuronscope.engine.guard import GUARD

if TYPE_CHECKING:
    from tests.faults.scoring import Outcome


def main() -> None:
    """Print the table, then the score."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="What the agent makes of faults."
    )
    parser.add_argument("only", nargs="*", help="faults whose name has one of these words; all by default")
    parser.add_argument("-s", "--seeds", type=int, default=1)
    parser.add_argument("-c", "--controls", type=int, default=14)
    parser.add_argument(
        "--set", type=int, default=0, help="of seeds; 0: those that detectors are written with"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="also print causes and evidence")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each comparison")
    parser.add_argument("-k", "--keep", type=Path, help="keep the recordings in this folder")
    parser.add_argument("--live", action="store_true", help="the live laboratory instead")
    asked = parser.parse_args()
    GUARD.reraise = True
    with tempfile.TemporaryDirectory() as folder:
        if asked.live:
            _live(Path(folder), asked.controls)
        else:
            _compared(asked.keep or Path(folder), asked)


def _compared(folder: Path, asked: argparse.Namespace) -> None:
    from tests.faults.changes import FAULTS
    from tests.faults.recorder import Studio
    from tests.faults.scoring import Scoring, score

    chosen = [fault for fault in FAULTS if not asked.only or any(word in fault.name for word in asked.only)]
    outcomes: list[Outcome] = []
    began = time.perf_counter()
    tell = _tell_programs if asked.json else _tell
    with Studio() as studio:
        scoring = Scoring(studio, folder, asked.set)
        for outcome in chain(scoring.faults(range(asked.seeds), chosen), scoring.controls(asked.controls)):
            outcomes.append(outcome)
            tell(outcome)
            if asked.verbose:
                _evidence(outcome)
    if asked.json:
        return
    found = score(outcomes)
    print(
        f"top-1 {found.top1:.1f} %, top-3 {found.top3:.1f} % of {found.faults} faults; false alarms "
        f"{found.false_alarms:.1f} % of {found.controls} controls; {time.perf_counter() - began:.0f} s"
    )


def _tell(outcome: Outcome) -> None:
    place = "right" if outcome.right else outcome.rank or "wrong"
    kinds = ", ".join(outcome.kinds) or "no change"
    print(f"{outcome.change.name:36} {outcome.seed:5} {place:>5} {outcome.seconds:5.2f}  {kinds}", flush=True)


def _tell_programs(outcome: Outcome) -> None:
    told = {"change": outcome.change.name, "seed": outcome.seed, "kinds": outcome.kinds}
    print(json.dumps({**told, "seconds": outcome.seconds}), flush=True)


def _evidence(outcome: Outcome) -> None:
    comparison = outcome.comparison
    assert comparison is not None
    for cause in (*comparison.causes, *comparison.consequences):
        follows = f" (follows from {', '.join(cause.because)})" if cause.because else ""
        print(f"    {cause.kind} {cause.subject}: {cause.summary} {cause.confidence:.3f}{follows}")
        for item in cause.evidence:
            told = (
                f"{item.what}: {item.before} -> {item.after}, {item.statistic} {item.effect:.3g}, p {item.p}"
            )
            print(f"        {told}, n {item.n_before}/{item.n_after}")


def _live(folder: Path, controls: int) -> None:
    from tests.faults.laboratory import Laboratory
    from tests.faults.retrieval import FAULTS

    laboratory = Laboratory(folder)
    for number, fault in enumerate([*FAULTS, *[None] * controls]):
        outcome = laboratory.run(fault, number)
        name = fault.name if fault is not None else "no change"
        print(f"{name:28} {', '.join(outcome.raised) or 'nothing':24} after {outcome.queries} queries")
        for finding in outcome.findings:
            print(f"    {finding.summary}")
            for evidence in finding.evidence:
                print(f"        {evidence}")


if __name__ == "__main__":
    main()
