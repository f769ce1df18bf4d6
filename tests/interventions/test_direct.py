"""The compiled look at a thread's state, asked of torch's libraries themselves, is Python's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from neuronscope import compiled
from neuronscope_instrumentation.torch.interventions import direct
from neuronscope_instrumentation.torch.interventions.turning import COMPILED, PlainRunTurns, RunTurns

_twin: Callable[[Any], bool] = PlainRunTurns.apart  # reads what either kind of run has
needs_compiled = pytest.mark.skipif(
    not COMPILED or sys.platform != "linux", reason="there is one look only: of torch's bindings"
)
FOUND = direct.find()


@pytest.fixture
def bind() -> Iterator[Callable[..., None]]:
    """Binds the compiled look to other functions, until the test ends."""
    bind: Callable[..., None] | None = compiled.find("bind_direct")
    assert bind is not None
    yield bind
    bind(*FOUND if FOUND is not None else (None,))


def _answers(apart: Callable[[Any], bool]) -> list[bool]:
    run, told = RunTurns(), list[bool]()
    for run.grad in (True, False, None):
        for run.inference in (True, False):
            told.append(apart(run))
    return told


@needs_compiled
def test_torch_s_own_functions_are_found_and_stand_the_trial() -> None:
    """On Linux with this torch the fast look is the one in use, else nobody would notice that it is not."""
    assert FOUND is not None
    assert direct.stands_the_trial(RunTurns.apart, _twin, RunTurns())


def test_releases_that_were_not_looked_up_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the same name might return another thing there."""
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    assert direct.find() is None


@needs_compiled
@pytest.mark.parametrize("state", list(direct.STATES))
@pytest.mark.parametrize("of_libraries", [True, False], ids=["libraries", "bindings"])
def test_every_state_is_seen_alike(state: str, of_libraries: bool, bind: Callable[..., None]) -> None:
    """Whoever is asked: torch's libraries, its bindings from C, or its bindings from Python."""
    bind(*FOUND if of_libraries and FOUND is not None else (None,))
    with direct.STATES[state]():
        assert _answers(RunTurns.apart) == _answers(_twin)
    assert _answers(RunTurns.apart) == _answers(_twin)


@needs_compiled
def test_a_backward_pass_is_seen_alike(bind: Callable[..., None]) -> None:
    """Inside autograd's engine a run with gradients may not be left."""
    told: list[tuple[list[bool], list[bool]]] = []

    def look(gradient: torch.Tensor) -> None:
        told.append((_answers(RunTurns.apart), _answers(_twin)))

    for functions in (FOUND, None):
        bind(*functions if functions is not None else (None,))
        doubled: Any = torch.ones(1, requires_grad=True) * 2
        doubled.register_hook(look)
        doubled.sum().backward()
    assert len(told) == 2
    assert all(ours == twins for ours, twins in told)


@needs_compiled
@pytest.mark.parametrize(("which", "taken"), [(which, (which + 3) % 9) for which in range(1, 6)])
def test_a_function_that_is_another_one_does_not_stand_the_trial(
    which: int, taken: int, bind: Callable[..., None]
) -> None:
    """As where a later torch gives a name another meaning: then its bindings are asked."""
    assert FOUND is not None
    addresses = list(FOUND[0])
    addresses[which] = addresses[taken if taken not in {0, 6, 7} else 8]
    bind(tuple(addresses), FOUND[1])
    assert not direct.stands_the_trial(RunTurns.apart, _twin, RunTurns())


@needs_compiled
def test_the_trial_leaves_threads_as_they_were() -> None:
    """Neither this one nor one that begins later has anything set."""
    before = _answers(_twin)
    direct.stands_the_trial(RunTurns.apart, _twin, RunTurns())
    told: list[list[bool]] = []
    thread = threading.Thread(target=lambda: told.append(_answers(_twin)))
    thread.start()
    thread.join()
    assert [_answers(_twin), *told] == [before, before]
