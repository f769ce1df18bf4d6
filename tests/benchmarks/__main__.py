"""``python -m tests.benchmarks [GROUP …]``: runs groups of benchmarks."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from types import FrameType
from typing import Final

from tests.benchmarks import docs
from tests.benchmarks.children import ChildError
from tests.benchmarks.figures import RESULTS, Figure, Run, save

# A group is a module `tests.benchmarks.NAME` with `figures(run: Run) -> Iterator[Figure]`.
GROUPS: Final = ("calls", "diagnosis", "governor", "interventions", "model", "nsz", "operations", "retrieval")


def main() -> int:
    """Run what the command line asks for; 0 unless something could not be measured at all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--docs", action="store_true", help="only write docs/performance.md from the results")
    parser.add_argument("--full", action="store_true", help="the long variants: a million calls, every peer")
    parser.add_argument("--rounds", type=int, default=11, help="interleaved rounds")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="figures whose name has it"
    )
    parser.add_argument("--seconds", type=float, help="how long one comparison may go on (governor)")
    parser.add_argument(
        "--merge",
        action="store_true",
        help="save what --only has selected beside the figures of earlier runs",
    )
    asked = parser.parse_args()
    if asked.docs:
        docs.write(RESULTS)
        return 0
    unknown = [name for name in asked.groups if name not in GROUPS]
    if unknown:
        parser.error(f"no group is called {unknown[0]!r}; there are: {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, _leave)
    failed = False
    for group in asked.groups or GROUPS:
        run = Run(asked.full, asked.rounds, tuple(asked.only), asked.seconds)
        failed |= not _run(group, run, merge=asked.merge)
    return 1 if failed else 0


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """Who is told to stop takes its children and its folders along."""
    sys.exit(143)


def _run(group: str, run: Run, *, merge: bool) -> bool:
    start = time.monotonic()
    done: list[Figure] = []
    stopped = ""
    told_to: SystemExit | None = None
    try:
        for figure in importlib.import_module(f"tests.benchmarks.{group}").figures(run):
            print(json.dumps(figure.to_json(), ensure_ascii=False), flush=True)
            done.append(figure)
    except (ChildError, SystemExit) as error:  # what has been measured until then is kept
        told_to = error if isinstance(error, SystemExit) else None
        stopped = "somebody ended it" if told_to else str(error)
        run.facts.append(f"The run stopped early: {stopped}")
    seconds = time.monotonic() - start
    if merge or not run.only:
        save(group, run, done, seconds, merge=merge)
    for fact in run.facts:
        print(fact, file=sys.stderr)
    missed = [figure.name for figure in done if figure.ok is False]
    unmeasured = [figure.name for figure in done if figure.value is None]
    print(
        f"{group}: {len(done)} figures in {seconds:.0f} s; goals missed: {', '.join(missed) or 'none'}; "
        f"not measured: {', '.join(unmeasured) or 'none'}",
        file=sys.stderr,
    )
    if told_to is not None:
        raise told_to
    return not unmeasured and not stopped


if __name__ == "__main__":
    sys.exit(main())
