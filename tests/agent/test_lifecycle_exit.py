"""The end of a process: everything goes out, within 2 seconds, whatever exporters and collectors do."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import neuronscope as ns
import programs
from collectors import OK, Collector, free_port, serving

pytestmark = pytest.mark.integration

# Our bound is 2 s; the interpreter needs a moment, more on a busy machine.  Without it, it were a minute.
LONGEST_EXIT_S = 30.0


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A collector that takes the connection and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield int(server.getsockname()[1])


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that works."""
    with serving() as running:
        yield running


END = {
    "main returns": "",
    "sys.exit": "sys.exit(0)",
    "SIGTERM": "import signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "a thread calls sys.exit": """
thread = threading.Thread(target=sys.exit)
thread.start(), thread.join()
client.chat("x", model="after")
""",
}


@pytest.mark.parametrize("end", END)
def test_everything_is_exported_at_the_end(collector: Collector, end: str) -> None:
    """Once, however the process ends."""
    done = programs.run(
        f"""
from neuronscope import auto
ns.registry.register_adapter(fakelib.integration("fakelib"))
auto.start()
for number in range(20):
    client.chat("x", model=str(number))
{END[end]}
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        NEURONSCOPE_EXPORT_INTERVAL="60",
        NEURONSCOPE_INSTRUMENT="fake",
    )
    assert done.code == (-15 if end == "SIGTERM" else 0), done.errors
    expected = Counter(f"chat {number}" for number in range(20))
    if end == "a thread calls sys.exit":
        expected["chat after"] = 1
    assert Counter(collector.spans) == expected
    assert any(metric.name == "gen_ai.client.operation.duration" for metric in collector.metrics)


@pytest.mark.parametrize("end", ["main returns", "SIGTERM"])
@pytest.mark.parametrize("fault", ["refused", "silent", "503", "no such host"])
def test_a_dead_collector_delays_the_exit_by_two_seconds_at_most(
    silent_port: int, fault: str, end: str
) -> None:
    """And the program's own output and exit code are as ever."""
    with serving() as collector:
        collector.answers = [(503, {"retry-after": "30"}, b"")]
        address = {
            "refused": f"127.0.0.1:{free_port()}",
            "silent": f"127.0.0.1:{silent_port}",
            "503": f"127.0.0.1:{collector.port}",
            "no such host": "collector.invalid:4318",
        }[fault]
        done = programs.run(
            f"""
from neuronscope import auto
ns.registry.register_adapter(fakelib.integration("fakelib"))
auto.start()
for number in range(2000):
    client.chat("x")
print(time.time(), flush=True)
{END[end]}
""",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{address}",
            OTEL_EXPORTER_OTLP_TIMEOUT="60",
            NEURONSCOPE_INSTRUMENT="fake",
        )
    assert done.code == (-15 if end == "SIGTERM" else 0), done.errors
    assert done.errors == ""
    assert done.ended_at - float(done.output) < LONGEST_EXIT_S


@pytest.mark.parametrize("method", ["export", "shutdown"])
@pytest.mark.parametrize("fault", ["hangs", "raises", "exits", "interrupts"])
def test_an_exporter_of_the_users_own_may_do_what_it_likes(fault: str, method: str) -> None:
    """It delays the exit by 2 seconds at most, and the other exporter gets everything."""
    expected = 1 if (fault, method) == ("hangs", "export") else 3
    done = programs.run(
        """
        fault, method, expected = sys.argv[1:]

        class Exporter:
            name = "theirs"
            def export(self, batch): self.act("export")
            def flush(self, timeout_s): return True
            def shutdown(self, timeout_s): self.act("shutdown")
            def act(self, where):
                if where == method:
                    if fault == "hangs": time.sleep(60)
                    if fault == "raises": raise RuntimeError("theirs")
                    if fault == "exits": sys.exit(3)
                    raise KeyboardInterrupt

        memory = ns.testing.InMemoryExporter()
        start(exporters=[memory, Exporter()], export_interval_s=0.02)
        until = time.monotonic() + 60
        for wanted in 1, 2, 3:
            client.chat("x")
            while len(memory.spans) < min(wanted, int(expected)) and time.monotonic() < until:
                time.sleep(0.01)
        import atexit
        print(time.time(), flush=True)
        atexit.register(lambda: print("calls", len(memory.spans)))
        """,
        fault,
        method,
        str(expected),
        timeout_s=250,
    )
    assert done.code == 0, done.errors
    at, *rest = done.output.split("\n", 1)
    assert done.ended_at - float(at) < LONGEST_EXIT_S
    assert rest == [f"calls {expected}\n"]


def test_calls_in_atexit_callbacks_are_observed(tmp_path: Path) -> None:
    """A service says goodbye to its provider."""
    done = programs.run(
        """
        import atexit
        start(nsz=sys.argv[1])
        atexit.register(client.chat, "bye", model="late")
        """,
        str(tmp_path),
    )
    assert done.code == 0, done.errors
    assert [span.name for span in ns.load(tmp_path).telemetry.spans] == ["chat late"]


def test_flush_before_os_exit(tmp_path: Path) -> None:
    """`os._exit` runs nobody's clean-up: what was flushed before is there."""
    done = programs.run(
        """
        start(nsz=sys.argv[1], export_interval_s=60)
        client.chat("x", model="flushed")
        assert ns.flush(60)
        client.chat("x", model="late")
        os._exit(5)
        """,
        str(tmp_path),
    )
    assert done.code == 5, done.errors
    assert [span.name for span in ns.load(tmp_path).telemetry.spans] == ["chat flushed"]


def test_not_deferred_needs_no_thread_and_no_flush(collector: Collector) -> None:
    """Where a process is frozen between requests, each span is handed on before the call returns."""
    done = programs.run(
        """
        memory = ns.testing.InMemoryExporter()
        start(exporters=[memory], deferred=False)
        client.chat("x")
        assert len(memory.spans) == 1
        assert threading.active_count() == 1
        os._exit(0)
        """
    )
    assert done.code == 0, done.errors


def test_a_user_handler_of_sigterm_is_left_alone(collector: Collector) -> None:
    """A service with its own handler ends as it decides to, and `atexit` flushes."""
    collector.answers = [OK]
    done = programs.run(
        """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        from neuronscope import auto
        ns.registry.register_adapter(fakelib.integration("fakelib"))
        auto.start()
        client.chat("x")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        """,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        NEURONSCOPE_INSTRUMENT="fake",
    )
    assert done.code == 9, done.errors
    assert collector.spans == ["chat m"]
