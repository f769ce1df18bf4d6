"""The group ``operations``: what a scrape costs, with more tenants and models than a page can hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from tests.benchmarks.children import child_environment, log_path, run_once
from tests.benchmarks.figures import Figure, Run, at_most

FLOOD = "after calls of 100,000 tenants, 50,000 junk model names and 12 models in use"


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group; one child measures them."""
    command = [sys.executable, "-m", "tests.benchmarks.operations.child", str(run.rounds)]
    told = json.loads(
        run_once(command, child_environment(sys.executable), log_path("operations"), timeout_s=900)
    )
    run.facts.append(
        f"{told['calls']:,} calls, {told['series']:,} series on a page of {told['lines']:,} lines; "
        f"{told['models']} of the 12 models in use have series of their own."
    )
    yield Figure(
        "operations.scrape_ms",
        told["scrape_ms"],
        "ms",
        at_most(100),
        note=f"wall clock of a GET over loopback without compression, {FLOOD}; the slower of both formats",
    )
    yield Figure(
        "operations.scrape_mb",
        told["scrape_mb"],
        "MB",
        at_most(1),
        note=f"of the larger of both formats, not compressed, {FLOOD}",
    )
    yield Figure(
        "operations.scrape_gzip_mb", told["gzip_mb"], "MB", note="the same, as Prometheus asks for it"
    )
    yield Figure(
        "operations.call_us",
        told["known_us"],
        "µs",
        note="metrics of a call whose labels are known: worker's thread CPU, no tenant",
    )
    yield Figure(
        "operations.call_after_us",
        told["after_us"],
        "µs",
        at_most(1.25 * told["known_us"]),
        note=f"the same {FLOOD}; the goal is a quarter more",
    )
    yield Figure(
        "operations.tenant_us",
        told["tenant_us"],
        "µs",
        note="the same with a tenant that has series of its own",
    )
    yield Figure(
        "operations.label_us",
        told["junk_us"],
        "µs",
        at_most(60),
        note="the same, of a new model and a new tenant each time: all of it is folded",
    )
    yield Figure(
        "operations.memory_mb",
        told["memory_mb"],
        "MB",
        at_most(10),
        note="what the aggregator and its caches hold after the flood, by tracemalloc",
    )
