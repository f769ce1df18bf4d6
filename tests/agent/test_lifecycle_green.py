"""gevent and eventlet programs: the worker runs beside the hub, and nothing waits for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import programs
from collectors import Collector, serving

pytestmark = pytest.mark.integration

LONGEST_EXIT_S = 30.0  # as in `test_lifecycle_exit`

PATCH = {
    "gevent": "import gevent.monkey; gevent.monkey.patch_all(); spawn = gevent.spawn; nap = gevent.sleep",
    "eventlet": "import eventlet; eventlet.monkey_patch(); spawn = eventlet.spawn; nap = eventlet.sleep",
}
WAIT = {"gevent": "gevent.joinall(jobs)", "eventlet": "[job.wait() for job in jobs]"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that works."""
    with serving() as running:
        yield running


@pytest.mark.parametrize("patched", ["before we start", "after we start"])
@pytest.mark.parametrize("library", PATCH)
@pytest.mark.parametrize("protocol", ["http/protobuf"])
def test_a_monkey_patched_program(collector: Collector, library: str, patched: str, protocol: str) -> None:
    """Calls in greenlets are observed and exported while the program runs, by a thread that is a real one."""
    start = """
import neuronscope as ns, fakelib
from neuronscope import auto
ns.registry.register_adapter(fakelib.integration("fakelib"))
auto.start()
client = fakelib.Client()
"""
    first, second = (PATCH[library], start) if patched.startswith("before") else (start, PATCH[library])
    done = programs.run(
        f"""
import os, sys, time, threading
{first}
{second}
def work(number):
    for call in range(5):
        with ns.Scope(f"scope-{{number}}-{{call}}"):
            nap(0.001)
            client.chat("x", model=f"{{number}}-{{call}}")
            nap(0.001)

jobs = [spawn(work, number) for number in range(20)]
{WAIT[library]}
assert ns.flush(60), "flush"
# While the hub is blocked the worker goes on.
client.chat("x", model="busy")
from neuronscope.engine import ENGINE
until = time.perf_counter() + 60
while ENGINE._worker.pending and time.perf_counter() < until:
    sum(range(1000))
assert not ENGINE._worker.pending, "the worker stands still"
with ns.Scope("last") as scope:
    client.chat("x", model="last")
assert len(scope.artifact.llm_spans) == 1
print(time.time(), flush=True)
""",
        prelude="",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        NEURONSCOPE_INSTRUMENT="fake",
        NEURONSCOPE_EXPORT_INTERVAL="0.05",
        PYTHONWARNINGS="ignore",
    )
    assert done.code == 0, done.errors
    assert done.ended_at - float(done.output) < LONGEST_EXIT_S
    calls = [f"{number}-{call}" for number in range(20) for call in range(5)]
    expected = [f"chat {call}" for call in calls] + [f"scope-{call}" for call in calls]
    assert Counter(collector.spans) == Counter([*expected, "chat busy", "last", "chat last"])


@pytest.mark.parametrize("library", PATCH)
def test_a_monkey_patched_program_with_a_dead_collector_ends(library: str) -> None:
    """Within our 2 seconds."""
    done = programs.run(
        f"""
{PATCH[library]}
import os, sys, time, threading, socket
import neuronscope as ns, fakelib
ns.registry.register_adapter(fakelib.integration("fakelib"))
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(8)
ns.Platform(otlp_endpoint=f"http://127.0.0.1:{{server.getsockname()[1]}}")
ns.instrument("fake")
fakelib.Client().chat("x")
assert not ns.flush(0.5)
print(time.time(), flush=True)
""",
        prelude="",
        OTEL_EXPORTER_OTLP_TIMEOUT="60",
        PYTHONWARNINGS="ignore",
    )
    assert done.code == 0, done.errors
    assert done.ended_at - float(done.output) < LONGEST_EXIT_S


@pytest.mark.parametrize("library", PATCH)
def test_a_fork_in_a_monkey_patched_program(collector: Collector, library: str) -> None:
    """As gunicorn's gevent and eventlet workers do."""
    done = programs.run(
        f"""
{PATCH[library]}
import os, sys, time
import neuronscope as ns, fakelib
ns.registry.register_adapter(fakelib.integration("fakelib"))
ns.Platform(otlp_endpoint=sys.argv[1])
ns.instrument("fake")
client = fakelib.Client()
client.chat("x", model="parent")
pid = os.fork()
if pid == 0:
    jobs = [spawn(client.chat, "x", model=f"child-{{n}}") for n in range(3)]
    {WAIT[library]}
    assert ns.flush(60)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code)
""",
        collector.url,
        prelude="",
        PYTHONWARNINGS="ignore",
    )
    assert done.code == 0, done.errors
    assert Counter(collector.spans) == Counter(["chat parent", *(f"chat child-{n}" for n in range(3))])
