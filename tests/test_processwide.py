"""What a test leaves changed for the whole process is told, in words that name it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fakelib
import neuronscope as ns
import processwide
from neuronscope import compiled, platform

Patch = pytest.MonkeyPatch


def another_directory(patch: Patch) -> None:
    patch.chdir(Path(os.sep))


def another_type(patch: Patch) -> None:
    patch.setattr(torch, "get_default_dtype", lambda: torch.float64)


def a_handler(patch: Patch) -> None:
    handler = signal.getsignal

    def other(number: int) -> Any:
        return signal.SIG_IGN if number == signal.SIGUSR1 else handler(number)

    patch.setattr(signal, "getsignal", other)


def an_adapter(patch: Patch) -> None:
    registered: Any = ns.registry
    patch.setitem(registered._registered_clients, "fake", fakelib.integration(fakelib.__name__))


def another_module(patch: Patch) -> None:
    patch.setitem(sys.modules, "neuronscope.platform", sys)


CHANGES: dict[str, Callable[[Patch], None]] = {
    "environment: NEURONSCOPE_X was None, is '1'": lambda patch: patch.setenv("NEURONSCOPE_X", "1"),
    "interpreter: working directory": another_directory,
    "interpreter: sys.path": lambda patch: patch.syspath_prepend("somewhere"),
    "handlers of signals: ": a_handler,
    "logging: level": lambda patch: patch.setattr(logging.root, "level", logging.DEBUG),
    "our loggers: neuronscope was": lambda patch: patch.setattr(
        logging.getLogger("neuronscope"), "disabled", True
    ),
    "NeuronScope: registered clients": an_adapter,
    "our modules: neuronscope.platform": another_module,
    "torch: default type": another_type,
}


@pytest.mark.parametrize("told", CHANGES)
def test_a_change_is_told_until_it_is_undone(told: str, monkeypatch: Patch) -> None:
    """One line for it, and no other."""
    before = processwide.look()
    with monkeypatch.context() as patch:
        CHANGES[told](patch)
        (line,) = processwide.changes(before)
        assert line.startswith(told)
    assert processwide.changes(before) == []


@pytest.mark.skipif(compiled.MODULE is None, reason="nothing is compiled here")
def test_what_compiled_code_is_given_is_told() -> None:
    """Another layout of tensors, say."""
    from neuronscope_instrumentation.torch import layout, telling

    assert telling.TELLS is None, "bound when it is imported"
    bind, before = compiled.find("bind_layout"), processwide.look()
    assert bind is not None
    try:
        bind(None)
        (line,) = processwide.changes(before)
        assert line.startswith("given to compiled code: bind_layout was (Layout(")
    finally:
        bind(layout.find())
    assert processwide.changes(before) == []


def test_functions_that_are_ours_still_are_told() -> None:
    """And none that were put back."""
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    try:
        ns.instrument("fake")
        installed = platform.installations()
        assert "fakelib:Client.chat" in processwide.still_wrapped(installed)
    finally:
        ns.uninstrument("fake")
        ns.registry.unregister_adapter("fake")
    assert processwide.still_wrapped(installed) == []
