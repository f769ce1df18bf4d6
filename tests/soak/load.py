"""The program under load: makes calls from threads or tasks, and prints what became of their spans.

``load.py threads|tasks CALLS RATE ENDPOINT NSZ``; it says "N" on stdout for every twentieth of the way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from pathlib import Path

import psutil

import fakelib
import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.signals import names

WORKERS = 64
STEPS = 20


class Progress:
    """Counts calls; tells the parent, and remembers how large the process was on the way."""

    def __init__(self, calls: int) -> None:
        self.left = iter(range(calls))  # `next` of a range is atomic
        self.done = 0
        self.rss: list[int] = []
        self._step = max(1, calls // STEPS)
        self._lock = threading.Lock()
        self._process = psutil.Process()

    def tick(self) -> None:
        with self._lock:
            self.done += 1
            if self.done % self._step == 0:
                self.rss.append(self._process.memory_info().rss)
                print(self.done // self._step, flush=True)


def in_threads(progress: Progress, pause: float) -> None:
    def work() -> None:
        client = fakelib.Client()
        for number in progress.left:
            client.chat("a b c", model=f"model-{number % 7}")
            client.calls.clear()
            progress.tick()
            time.sleep(pause)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_tasks(progress: Progress, pause: float) -> None:
    async def work() -> None:
        client = fakelib.Client()
        for number in progress.left:
            await client.achat("a b c", model=f"model-{number % 7}")
            client.calls.clear()
            progress.tick()
            await asyncio.sleep(pause)

    async def run() -> None:
        await asyncio.gather(*(work() for _ in range(WORKERS)))

    asyncio.run(run())


def counted(metric: names.Metric, **labels: str) -> dict[str, int]:
    """Sums of a counter of ours, by the last of its labels."""
    found: dict[str, int] = {}
    for family in ENGINE.metrics.collect().families:
        for point in family.points if family.metric is metric else ():
            known = dict(point.labels)
            if labels.items() <= known.items() and isinstance(point.value, float | int):
                key = point.labels[-1][1]
                found[key] = found.get(key, 0) + int(point.value)
    return found


def main() -> None:
    how, calls, rate, endpoint, nsz = sys.argv[1:]
    ns.registry.register_adapter(fakelib.integration("fakelib"))
    platform = ns.Platform(otlp_endpoint=endpoint, nsz=nsz, export_interval_s=0.2)
    ns.instrument("fake")
    progress = Progress(int(calls))
    started = time.monotonic()
    (in_threads if how == "threads" else in_tasks)(progress, WORKERS / float(rate))
    seconds = time.monotonic() - started
    ending = time.monotonic()
    platform.shutdown()
    ending = time.monotonic() - ending
    gc.collect()
    report = {
        "made": progress.done,
        "exported": counted(names.EXPORTED, item="span"),
        "lost": counted(names.DROPPED, item="span"),
        "rss": [*progress.rss, psutil.Process().memory_info().rss],
        "seconds": seconds,
        "shutdown_seconds": ending,
        "segments": len(list(Path(nsz).glob("*.nsz"))),
    }
    print(json.dumps(report), flush=True)


main()
