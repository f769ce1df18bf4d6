"""Forked and spawned processes: each exports its own spans, once, and none waits for a lost lock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import neuronscope as ns
import programs

pytestmark = pytest.mark.integration


def recorded(directory: Path) -> Counter[str]:
    """How often each span was written, by name, over all processes."""
    return Counter(span.name for span in ns.load(directory).telemetry.spans)


@pytest.mark.parametrize("end", ["return", "sys.exit", "raise"])
def test_a_forked_child_exports_its_own_spans_once(tmp_path: Path, end: str) -> None:
    """What the parent had queued at the fork is the parent's."""
    done = programs.run(
        """
        start(nsz=sys.argv[1], export_interval_s=60)
        client.chat("x", model="before")
        pid = os.fork()
        client.chat("x", model="parent" if pid else "child")
        if pid:
            assert os.waitpid(pid, 0)[1] in (0, 256)
        elif sys.argv[2] == "sys.exit":
            sys.exit(0)
        elif sys.argv[2] == "raise":
            raise ValueError("the child's own")
        """,
        str(tmp_path),
        end,
    )
    assert done.code == 0, done.errors
    assert recorded(tmp_path) == {"chat before": 1, "chat parent": 1, "chat child": 1}
    assert len(list(tmp_path.glob("*.nsz"))) == 2


def test_a_scope_that_is_open_at_a_fork_ends_in_the_parent(tmp_path: Path) -> None:
    """The child leaves the same block, but the span is not its own; its calls in there are."""
    done = programs.run(
        """
        start(nsz=sys.argv[1])
        with ns.Scope("request"):
            stream = client.chat("a b", stream=True, model="stream")
            pid = os.fork()
            list(stream)
            client.chat("x", model="parent" if pid else "child")
        if pid:
            os.waitpid(pid, 0)
        """,
        str(tmp_path),
    )
    assert done.code == 0, done.errors
    assert recorded(tmp_path) == {"request": 1, "chat stream": 1, "chat parent": 1, "chat child": 1}
    spans = {span.name: span for span in ns.load(tmp_path).telemetry.spans}
    assert spans["chat child"].parent_span_id == spans["request"].span_id


def test_forks_while_threads_are_at_work(tmp_path: Path) -> None:
    """Locks that other threads hold at the fork keep no child waiting; every span comes once."""
    done = programs.run(
        """
        start(nsz=sys.argv[1], export_interval_s=0.01)
        stop = threading.Event()
        made = [0] * 4

        def work(number):
            while not stop.is_set():
                client.chat("x", model=f"thread-{number}-{made[number]}")
                made[number] += 1
                time.sleep(0.0005)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for child in range(25):
            time.sleep(0.003)
            pid = os.fork()
            if pid == 0:
                with ns.Scope(f"scope-{child}") as scope:
                    client.chat("x", model=f"child-{child}")
                assert len(scope.artifact.llm_spans) == 1
                assert ns.flush(60)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        stop.set()
        for thread in threads:
            thread.join()
        print(sum(made))
        """,
        str(tmp_path),
    )
    assert done.code == 0, done.errors
    found = recorded(tmp_path)
    assert set(found.values()) == {1}
    assert len(found) == int(done.output) + 25 + 25


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_are_observed(tmp_path: Path, method: str) -> None:
    """Also those that end by `os._exit`, as multiprocessing's do."""
    nsz = tmp_path / "nsz"
    done = programs.run(
        """
        import multiprocessing

        def work(number):
            if multiprocessing.get_start_method() != "fork":
                start(nsz=sys.argv[1])
            client.chat("x", model=f"child-{number}")

        if __name__ == "__main__":
            multiprocessing.set_start_method(sys.argv[2])
            start(nsz=sys.argv[1])
            client.chat("x", model="parent")
            children = [multiprocessing.Process(target=work, args=(n,)) for n in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join()
            print([child.exitcode for child in children])
        """,
        str(nsz),
        method,
        file=tmp_path / "program.py",
    )
    assert done.code == 0, done.errors
    assert "[0, 0]" in done.output, done.errors
    assert recorded(nsz) == {"chat parent": 1, "chat child-0": 1, "chat child-1": 1}


def test_a_process_pool_is_observed(tmp_path: Path) -> None:
    """Its workers live as long as the pool and end with it."""
    done = programs.run(
        """
        from concurrent.futures import ProcessPoolExecutor
        import multiprocessing

        def work(number):
            return client.chat("a b", model=f"call-{number}")["tokens"]

        start(nsz=sys.argv[1])
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            assert list(pool.map(work, range(6))) == [2] * 6
        """,
        str(tmp_path),
    )
    assert done.code == 0, done.errors
    assert recorded(tmp_path) == {f"chat call-{n}": 1 for n in range(6)}


def test_a_child_that_becomes_another_program_starts_nothing(tmp_path: Path) -> None:
    """Between fork and exec no thread is started and no exporter made."""
    done = programs.run(
        """
        start(nsz=sys.argv[1], prometheus="127.0.0.1:0")
        client.chat("x")
        pid = os.fork()
        if pid == 0:
            assert threading.active_count() == 1
            os.execv(sys.executable, [sys.executable, "-c", "import threading"])
        assert os.waitpid(pid, 0)[1] == 0
        """,
        str(tmp_path),
    )
    assert done.code == 0, done.errors
    assert recorded(tmp_path) == {"chat m": 1}


def test_metrics_of_a_child_are_its_own() -> None:
    """A child counts from zero."""
    done = programs.run(
        """
        from neuronscope.engine import ENGINE
        from neuronscope.signals import names

        def calls():
            ENGINE.drain()
            for family in ENGINE.metrics.collect().families:
                if family.metric is names.OPERATION_DURATION:
                    return sum(point.value.count for point in family.points)
            return 0

        start()
        client.chat("x"), client.chat("x")
        assert calls() == 2
        pid = os.fork()
        if pid == 0:
            client.chat("x")
            os._exit(calls())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        """
    )
    assert done.code == 0, done.errors
