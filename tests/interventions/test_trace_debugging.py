"""Debuggers and profilers see a trace's body as what it is: the user's own lines."""

from __future__ import annotations

import inspect
import io
import pdb  # noqa: T100  it is what is tested
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import neuronscope as ns
from tracednets import X, blocks, left_on


def body(model: ns.Model, stop: Callable[[], None] = lambda: None) -> Any:
    """Traced in the tests below, which look for these lines."""
    with model.trace(X) as t:
        stop()
        hidden = t.h[0].output[0]  # runs the model
        doubled = hidden * 2  # the line after
        t.h[0].replace_first(doubled)
        last = t.h[2].output[0]
    return hidden, last, t.result


def lines_of(name: str) -> dict[str, int]:
    """Numbers of the body's lines by what they say."""
    lines, first = body.__code__.co_lines(), body.__code__.co_firstlineno
    numbers = sorted({number for _, _, number in lines if number is not None})
    text = Path(__file__).read_text().splitlines()
    return {text[number - 1].strip(): number for number in numbers if number > first} | {name: first}


@pytest.fixture
def tracing() -> Iterator[None]:
    """Puts back whatever traces this thread, coverage's own function for one."""
    before = sys.gettrace()
    yield
    sys.settrace(before)


@pytest.mark.usefixtures("tracing")
def test_a_debugger_steps_through_the_body_and_over_the_model() -> None:
    """A breakpoint in the body, its values, its lines, and the model's run in between as one step."""
    net = blocks()
    told = io.StringIO()
    commands = [
        "up",
        "where",
        "down",
        "next",
        "next",
        "p hidden.shape",
        "next",
        "p doubled.shape",
        "continue",
    ]
    debugger = pdb.Pdb(
        stdin=io.StringIO("\n".join(commands) + "\n"), stdout=told, nosigint=True, readrc=False
    )
    debugger.use_rawinput = False

    def stop() -> None:
        here = inspect.currentframe()
        debugger.set_trace(here.f_back if here is not None else None)

    hidden, _, result = body(ns.Model.wrap(net), stop)
    text = told.getvalue()
    assert "hidden = t.h[0].output[0]  # runs the model" in text
    assert "doubled = hidden * 2  # the line after" in text
    assert text.count("torch.Size([2, 8])") == 2
    assert f"{__file__}({lines_of('body')['hidden = t.h[0].output[0]  # runs the model']})body()" in text
    assert hidden.shape == result.shape
    assert not left_on(net)


@pytest.mark.usefixtures("tracing")
def test_every_line_of_the_body_is_seen_once_and_in_order() -> None:
    """As by coverage and by breakpoints; with the model's own lines in its frames, not in the body's."""
    numbers = lines_of("body")
    seen: list[int] = []
    of_the_model: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code is body.__code__:
            seen.append(frame.f_lineno)
        elif event == "line" and frame.f_code.co_qualname == "Block.forward":
            of_the_model.append(frame.f_code.co_filename)
        return look

    model = ns.Model.wrap(blocks())
    sys.settrace(look)
    try:
        body(model)
    finally:
        sys.settrace(None)
    wanted = [numbers[line] for line in numbers if line.split(" ")[0] in {"hidden", "doubled", "last"}]
    assert [number for number in seen if number in wanted] == sorted(wanted)
    assert len(of_the_model) == 3
    assert all(name.endswith("tracednets.py") for name in of_the_model)


def test_an_error_in_the_body_shows_the_body_s_line_and_nothing_of_ours() -> None:
    """The traceback is the user's."""
    with pytest.raises(ZeroDivisionError) as caught:
        with ns.Model.wrap(blocks()).trace(X) as t:
            hidden = t.h[0].output[0]
            _ = hidden.shape[0] / 0
    entries = [entry for entry in caught.traceback if "neuronscope_instrumentation" in str(entry.path)]
    assert not entries
    assert str(caught.traceback[-1].path) == __file__
