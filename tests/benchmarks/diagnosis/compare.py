"""Two recordings of 10,000 traces each through ``ns.compare``, in a process of its own.

A trace is a request, an embedding with the aggregates of six layers, a search of ten hits and a streamed chat
with the structure of its prompt: 40,000 spans a side.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, Run, at_most
from tests.benchmarks.measure import spread
from tests.diagnosis.side import Service

from neuronscope.exporters import registry
from neuronscope.signals import names

TRACES = 10_000
RUNS = 3
_CHILD = """
import json, resource, sys, time
import neuronscope as ns
started, cpu = time.perf_counter(), time.process_time()
result = ns.compare(sys.argv[1], sys.argv[2])
seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "cpu": cpu, "mb": rss, "kinds": [str(kind) for kind in result.kinds]}))
"""


def figures(run: Run) -> Iterator[Figure]:
    """Seconds and peak memory, the import of what is needed included in the memory."""
    if not run.wants("diagnosis.compare_10k_seconds", "diagnosis.compare_10k_mb"):
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [_record(Path(folder) / f"{seed}.nsz", seed) for seed in (1, 2)]
        found = [_compare(paths) for _ in range(RUNS)]
    best = min(found, key=lambda item: float(item["seconds"]))
    note = (
        f"{TRACES:,} traces of 4 spans a side, best of {RUNS}; CPU {float(best['cpu']):.2f} s; "
        f"found: {', '.join(best['kinds']) or 'no change'}"
    )
    seconds = [float(item["seconds"]) for item in found]
    yield Figure(
        "diagnosis.compare_10k_seconds", min(seconds), "s", at_most(5), spread=spread(seconds), note=note
    )
    yield Figure(
        "diagnosis.compare_10k_mb",
        max(float(item["mb"]) for item in found),
        "MB",
        at_most(500),
        note="peak resident memory of the process",
    )


def _compare(paths: list[Path]) -> dict[str, Any]:
    command = [sys.executable, "-c", _CHILD, *map(str, paths)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def _record(path: Path, seed: int) -> Path:
    layers = [f"encoder.layer.{number}" for number in range(6)]

    def around(mean: float, spread: float) -> Any:
        def drawn(draw: random.Random) -> list[float]:
            return [draw.gauss(mean, spread) for _ in layers]

        return drawn

    aggregates: dict[str, Any] = {
        names.LAYERS_IDS: layers,
        names.LAYERS_MEAN: around(0, 0.01),
        names.LAYERS_STD: around(1, 0.01),
        names.LAYERS_ABS_MAX: around(9, 0.1),
    }
    service = Service(
        seed, TRACES, k=10, questions=tuple(range(3_000)), gap_s=0.05, attributes={"embeddings": aggregates}
    )
    registry.nsz("write")(path, service.spans(), [], {"service.name": "ask"}, [])
    return path
