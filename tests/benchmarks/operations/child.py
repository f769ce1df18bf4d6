"""Floods an aggregator with tenants and model names, then is scraped; prints what that cost as JSON."""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
import tracemalloc
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanKind

from neuronscope.engine.metrics import Aggregator
from neuronscope.engine.span_metrics import SpanMetrics
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_exporters.prometheus.page import MetricsPage
from neuronscope_exporters.prometheus.server import MetricsServer

TENANTS: Final = 100_000
JUNK: Final = 50_000
MODELS: Final = tuple(f"provider/model-in-use-{number}" for number in range(12))
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"


def call(number: int, model: str, tenant: str | None = None) -> SpanRecord:
    """A finished chat of 0.8 s."""
    attributes: dict[str, Any] = {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "openai",
        names.REQUEST_MODEL: model,
        names.RESPONSE_MODEL: model,
        names.SERVER_ADDRESS: "api.openai.com",
        names.SERVER_PORT: 443,
        names.INPUT_TOKENS: 800 + number % 100,
        names.OUTPUT_TOKENS: 120,
        names.TIME_TO_FIRST_CHUNK: 0.3,
        names.COST: 0.002,
        names.COST_PRICES: "2026-11-01",
    }
    if tenant is not None:
        attributes[names.TENANT] = tenant
    return SpanRecord(
        trace_id=number + 1,
        span_id=number + 1,
        name="chat",
        kind=SpanKind.CLIENT,
        start_unix_ns=1_000_000_000 + number,
        end_unix_ns=1_800_000_000 + number,
        attributes=attributes,
        library="neuronscope.openai",
    )


class Clock:
    """Time passes as calls come: a thousand a second."""

    now = 1_000_000_000

    def __call__(self) -> int:
        """The time of day in ns."""
        return self.now


def flood(metrics: SpanMetrics, clock: Clock) -> int:
    """Every tenant and every junk name once, and a quarter of all calls from few tenants to few models."""
    source = random.Random(3)
    regular = 0
    for number in range(TENANTS):
        clock.now += 1_000_000
        junk = number % (TENANTS // JUNK) == 0
        model = f"junk-{number:05d}-{source.getrandbits(32):08x}" if junk else source.choice(MODELS)
        metrics.record(call(number, model, f"tenant-{1000 + number}"), None)
        if number % 3 == 0:
            tenant = f"tenant-{int(source.paretovariate(0.8)) % 1000}"
            metrics.record(call(number, source.choice(MODELS), tenant), None)
            regular += 1
    return TENANTS + regular


def cost_us(metrics: SpanMetrics, records: Sequence[SpanRecord], rounds: int) -> float:
    """Thread CPU per record, the median of rounds."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        for record in records:
            metrics.record(record, None)
        times.append((time.thread_time_ns() - start) / len(records) / 1e3)
    return statistics.median(times)


def junk_cost_us(metrics: SpanMetrics, rounds: int) -> float:
    """Of calls that are all new."""
    times: list[float] = []
    for turn in range(rounds):
        records = [call(n, f"new-{turn}-{n}", f"new-{turn}-{n}") for n in range(500)]
        times.append(cost_us(metrics, records, 1))
    return statistics.median(times)


def scrapes(url: str, accept: str, rounds: int, encoding: str = "identity") -> tuple[float, bytes]:
    """Wall clock of a scrape in ms, the median of rounds; and what came."""
    times: list[float] = []
    body = b""
    for _ in range(rounds):
        request = urllib.request.Request(url, headers={"Accept": accept, "Accept-Encoding": encoding})
        start = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), body


def held_mb(clock: Clock) -> float:
    """What a flood leaves in memory."""
    gc.collect()
    tracemalloc.start()
    aggregator = Aggregator(clock)
    metrics = SpanMetrics(aggregator)
    flood(metrics, clock)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / 1e6


def own_models(lines: Iterable[str]) -> int:
    """How many of the models in use have series of their own."""
    name = "gen_ai_client_operation_duration_seconds_count"
    return sum(any(line.startswith(name) and f'"{model}"' in line for line in lines) for model in MODELS)


def main() -> None:
    """Measure, and print."""
    rounds = int(sys.argv[1])
    clock = Clock()
    fresh = SpanMetrics(Aggregator(clock))
    known = [call(number, model) for number, model in enumerate(MODELS * 100)]
    told: dict[str, Any] = {"known_us": cost_us(fresh, known, rounds)}
    aggregator = Aggregator(clock)
    metrics = SpanMetrics(aggregator)
    told["calls"] = flood(metrics, clock)
    told["after_us"] = cost_us(metrics, known, rounds)
    told["tenant_us"] = cost_us(metrics, [call(n, MODELS[n % 12], "tenant-1") for n in range(1200)], rounds)
    told["junk_us"] = junk_cost_us(metrics, rounds)
    server = MetricsServer("127.0.0.1", 0, MetricsPage(aggregator.collect, {"service.name": "shop"}))
    plain_ms, plain = scrapes(server.url, "", rounds)
    open_ms, opened = scrapes(server.url, OPENMETRICS, rounds)
    _, packed = scrapes(server.url, OPENMETRICS, 1, "gzip")
    server.close()
    lines = plain.decode().splitlines()
    told["scrape_ms"] = max(plain_ms, open_ms)
    told["scrape_mb"] = max(len(plain), len(opened)) / 1e6
    told["gzip_mb"] = len(packed) / 1e6
    told["lines"] = len(lines)
    told["models"] = own_models(lines)
    told["series"] = sum(len(family.points) for family in aggregator.collect().families)
    told["memory_mb"] = held_mb(clock) if rounds > 1 else 0
    print(json.dumps(told))


if __name__ == "__main__":
    main()
