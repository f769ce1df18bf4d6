"""`view --follow`: traces appear when they end, and nothing that came is lost."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
from rich.console import Console

import strange
from neuronscope.signals.records import LayerRecord, SpanRecord
from neuronscope.viewer.follow import GIVEN_UP_S, SETTLED_S, Unfinished, follow
from neuronscope_exporters.nsz import NszWriter

ROOT = strange.span(1, trace_id=5, span_id=1, name="root")
CHILD = strange.span(2, trace_id=5, span_id=2, parent_span_id=1, name="child")


def of(
    service: str, *records: SpanRecord | LayerRecord
) -> list[tuple[SpanRecord | LayerRecord, dict[str, str]]]:
    """Records as they arrive from a process."""
    return [(record, {"service.name": service}) for record in records]


def test_a_trace_ends_a_moment_after_its_root() -> None:
    """Parts of other processes that come in that moment belong to it, layers too."""
    unfinished = Unfinished()
    unfinished.take(of("web", ROOT), now=10.0)
    assert list(unfinished.ended(10.0 + SETTLED_S / 2)) == []
    unfinished.take(of("model", CHILD, strange.layer(0, 0, CHILD)), now=10.5)
    assert list(unfinished.ended(10.0 + SETTLED_S)) == []
    (trace,) = unfinished.ended(10.5 + SETTLED_S)
    (root,) = trace.roots
    assert (root.span.name, root.service) == ("root", "web")
    assert [(child.span.name, child.service, len(child.layers)) for child in root.children] == [
        ("child", "model", 1)
    ]
    assert unfinished.records == 0


def test_what_comes_late_is_shown_late() -> None:
    """Under the same trace id."""
    unfinished = Unfinished()
    unfinished.take(of("web", ROOT), now=0.0)
    assert len(list(unfinished.ended(SETTLED_S))) == 1
    unfinished.take(of("model", CHILD), now=5.0)
    (late,) = unfinished.ended(5.0 + GIVEN_UP_S)
    assert late.trace_id == ROOT.trace_id
    assert late.roots[0].span.name == "child"


def test_a_trace_without_a_root_is_waited_for_but_not_for_ever() -> None:
    """A process that died keeps its callees' spans from nobody."""
    unfinished = Unfinished()
    unfinished.take(of("model", CHILD), now=0.0)
    assert list(unfinished.ended(GIVEN_UP_S - 1)) == []
    assert len(list(unfinished.ended(GIVEN_UP_S))) == 1


def test_memory_is_bounded() -> None:
    """Beyond the limit the oldest traces are shown as far as they came."""
    unfinished = Unfinished()
    spans = [strange.span(number, parent_span_id=1) for number in range(10)]
    unfinished.take(of("web", *spans), now=0.0)
    shown = [trace.roots[0].span.name for trace in unfinished.ended(0.0, max_held=7)]
    assert shown == ["span 0", "span 1", "span 2"]
    assert unfinished.records == 7
    assert len(list(unfinished.rest())) == 7


def test_following_a_directory_of_several_processes(tmp_path: Path) -> None:
    """Old traces are counted, new ones of a segment that appears later shown, and the last on Ctrl-C."""
    first = NszWriter(tmp_path / "a.nsz", [{"service.name": "web"}])
    first.append_span(strange.span(7, name="before"))
    first.flush()
    out = io.StringIO()
    steps = 0
    second: list[NszWriter] = []

    def sleep(_: float) -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            second.append(NszWriter(tmp_path / "b.nsz", [{"service.name": "model"}]))
            second[0].append_span(CHILD)
            second[0].flush()
            first.append_span(ROOT)
            first.flush()
        elif steps == 3:
            time.sleep(SETTLED_S)
        elif steps == 4:
            first.append_span(strange.span(9, name="unfinished", parent_span_id=4))
            first.flush()
        elif steps == 6:
            raise KeyboardInterrupt

    follow(Console(file=out, width=120), tmp_path, sleep=sleep)
    for writer in (first, *second):
        writer.close()
    text = out.getvalue()
    assert "1 traces so far" in text
    assert "before" not in text
    assert "root  [web]" in text
    assert "child  [model]" in text
    assert text.index("root") < text.index("child")
    assert text.index("child") < text.index("unfinished")


def test_the_last_traces_before_are_shown_when_asked_for(tmp_path: Path) -> None:
    """--last N begins with them; --trace chooses."""
    with_two = tmp_path / "a.nsz"
    strange.many_spans(4, 2).save(with_two)

    def shown(last: int, trace_id: str | None = None) -> str:
        def stop(_: float) -> None:
            raise KeyboardInterrupt

        out = io.StringIO()
        follow(Console(file=out, width=120), with_two, sleep=stop, last=last, trace_id=trace_id)
        return out.getvalue()

    assert "span 0" not in shown(last=1)
    assert "span 2" in shown(last=1)
    assert "span 0" in shown(last=2, trace_id=f"{0xD0000:032x}")
    assert "span 2" not in shown(last=2, trace_id=f"{0xD0000:032x}")


@pytest.mark.integration
def test_the_command_follows_until_ctrl_c(tmp_path: Path) -> None:
    """From another process's file to the terminal within seconds; then it ends well."""
    writer = NszWriter(tmp_path / "a.nsz", [{"service.name": "web"}])
    command = [sys.executable, "-u", "-m", "neuronscope", "view", str(tmp_path), "--follow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert "following" in process.stdout.readline()
    writer.append_span(ROOT)
    writer.flush()
    lines = _until("root", process.stdout)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    process.stdout.close()
    assert any("[web]" in line for line in lines)
    writer.close()


def _until(word: str, stream: IO[str], timeout: float = 60.0) -> Sequence[str]:
    """Lines of a stream, up to the one with a word."""
    lines: list[str] = []

    def read() -> None:
        for line in stream:
            lines.append(line)
            if word in line:
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout)
    assert not reader.is_alive(), lines
    return lines


def test_follow_writes_only_to_the_terminal(tmp_path: Path) -> None:
    """A page or JSON cannot be followed: told as wrong usage."""
    command = [sys.executable, "-m", "neuronscope", "view", str(tmp_path), "--follow", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 2
    assert "--follow" in done.stderr
