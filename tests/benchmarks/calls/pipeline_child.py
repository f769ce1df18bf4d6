"""Runs calls whose spans are exported over OTLP: by NeuronScope, or by the SDK with the same by hand.

    python -m tests.benchmarks.calls.pipeline_child neuronscope|sdk|nothing PORT [--exit CALLS]

The call is openai's chat with the SDK cut out (`openai_client`), so that the pipeline stands alone.  With
``--exit`` it makes that many calls, prints a line, and ends as a service does; else it answers commands.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.calls.openai_client import Sdk
from tests.benchmarks.calls.peers import Counter
from tests.benchmarks.calls.side_by_side import OURS, quiet
from tests.benchmarks.children import serve
from tests.benchmarks.measure import Call, loop_us

BATCH: Final = 512
TICK_S: Final = 0.005
NOTHING: Final = "nothing"  # the same service, not observed
FLUSH_S: Final = 60.0


class Pipeline:
    """One side, exporting to the collector at this port.

    Attributes:
        call: makes one span.
        idle: the same call, not observed.
        flush: waits until everything is exported.
    """

    def __init__(self, side: str, port: int) -> None:
        sdk = Sdk()
        self.side = side
        self.flush: Callable[[], object]
        endpoint = f"http://127.0.0.1:{port}"
        if side == NOTHING:
            self.call = self.idle = sdk.call("chat", "create")
            self.flush = lambda: None
        elif side == OURS:
            import neuronscope as ns

            self.idle = sdk.call("chat", "create")
            ns.Platform(otlp_endpoint=endpoint)
            ns.instrument("openai")
            self.call = sdk.call("chat", "request")
            self.flush = lambda: ns.flush(FLUSH_S)
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from tests.benchmarks.calls import by_hand

            self.idle = sdk.call("chat", "request")
            provider = by_hand.set_up(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces"))
            by_hand.switch_on()
            self.call = sdk.call("chat", "create")
            self.flush = provider.force_flush

    # --- commands --------------------------------------------------------------------------------------
    def cpu(self, n: int) -> dict[str, float]:
        """CPU time a span, in µs: of the whole process, and of the calling thread while it calls."""
        self._batches(BATCH)
        start, hot = time.process_time_ns(), self._batches(n)
        return {"process_us": (time.process_time_ns() - start) / n / 1e3, "hot_us": hot / n / 1e3}

    def _batches(self, n: int) -> int:
        """Make `n` spans, flushed in batches, so that no queue runs full; returns calling CPU in ns."""
        hot = 0
        for first in range(0, n, BATCH):
            start = time.thread_time_ns()
            for _ in range(min(BATCH, n - first)):
                self.call()
            hot += time.thread_time_ns() - start
            self.flush()
        return hot

    def produce(self, rate: int, seconds: float) -> dict[str, float]:
        """Make `rate` spans a second for so long, evenly; says how many it was and how long it took."""
        start = time.perf_counter()
        made = self._pace(self.call, rate, lambda: time.perf_counter() - start < seconds)
        return {"spans": made, "seconds": time.perf_counter() - start}

    @staticmethod
    def _pace(call: Call, rate: int, going: Callable[[], bool]) -> int:
        made, start = 0, time.perf_counter()
        while going():
            due = min(int((time.perf_counter() - start + TICK_S) * rate), made + rate)
            for _ in range(due - made):
                call()
            made = due
            left = start + made / rate - time.perf_counter()
            if left > 0:
                time.sleep(left)
        return made

    def lateness(self, rate: int, seconds: float, *, observed: bool) -> dict[str, float]:
        """How late, in ms, a thread wakes from 1 ms of sleep while another makes `rate` calls a second."""
        over = threading.Event()
        call = self.call if observed else self.idle
        producer = threading.Thread(
            target=self._pace, args=(call, rate, lambda: not over.is_set()), daemon=True
        )
        producer.start()
        late: list[float] = []
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            before = time.perf_counter_ns()
            time.sleep(0.001)
            late.append((time.perf_counter_ns() - before) / 1e6 - 1.0)
        over.set()
        producer.join()
        self.flush()
        late.sort()
        return {
            name: late[int(len(late) * part)] for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        }

    def memory(self, n: int) -> float:
        """Resident memory in MiB after `n` more calls, all exported."""
        self._batches(n)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096 / (1 << 20)

    def encode(self, n: int) -> float:
        """CPU time of encoding a span as OTLP, in µs: batches of 512 real spans, `n` times."""
        encode = _our_encoder(self) if self.side == OURS else _sdk_encoder(self)
        encode()
        return loop_us(encode, n) / BATCH


def _our_encoder(pipeline: Pipeline) -> Call:
    from neuronscope.engine import ENGINE
    from neuronscope.signals.records import SpanRecord
    from neuronscope_exporters.otlp.encode_spans import SpanEncoder

    records: list[SpanRecord] = []

    class Keeping:
        name = "keeping"

        def export(self, batch: Any) -> None:
            records.extend(batch.spans)

        def flush(self, timeout_s: float) -> bool:
            return True

        def shutdown(self, timeout_s: float) -> None:
            """Nothing to do."""

    import neuronscope as ns

    ns.Platform(exporters=[Keeping()])
    for _ in range(BATCH):
        pipeline.call()
    pipeline.flush()
    resource, encoder = ENGINE.resource(), SpanEncoder(lambda reason, n: None)
    assert len(records) == BATCH
    return lambda: list(encoder.encode(resource, records))


def _sdk_encoder(pipeline: Pipeline) -> Call:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from tests.benchmarks.calls import by_hand

    keeping = by_hand.CountingSdkExporter(Counter())
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(keeping))
    for _ in range(BATCH):
        pipeline.call()
    assert len(keeping.last) == BATCH
    spans = keeping.last
    return lambda: encode_spans(spans).SerializeToString()


def main() -> None:
    side, port, *ending = sys.argv[1:]
    quiet()
    pipeline = Pipeline(side, int(port))
    if ending:
        for _ in range(int(ending[1])):
            pipeline.call()
        print(time.time(), flush=True)
        return

    def answer(command: str, **arguments: Any) -> Any:
        return getattr(pipeline, command)(**arguments)

    serve(answer)


if __name__ == "__main__":
    main()
