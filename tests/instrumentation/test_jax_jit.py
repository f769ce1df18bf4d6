"""Observation and JAX's compilation: what is traced when, what stays plain, and what is told."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jaxnets
import neuronscope as ns
from jaxnets import ROWS
from neuronscope import joining, recording
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord
from neuronscope_instrumentation.jax import ADAPTER, emission, sessions

jax: Any = importlib.import_module("jax")  # much of it has no types
jet: Any = importlib.import_module("jax.experimental.jet").jet


@pytest.fixture(autouse=True)
def no_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """What scopes watch is part of the key of compiled code: models of other tests would come and go."""
    monkeypatch.setattr(joining.MEMBERS, "_models", {})


class Counted:
    """A model of linen in a jitted function that counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0
        self.model, self.variables = jaxnets.linen()
        ns.Model.wrap(self.model)

        def forward(variables: Any, x: Any) -> Any:
            self.traces += 1
            return self.model.apply(variables, x)

        self.forward = forward
        self.jitted = jax.jit(forward)

    def run(self) -> bytes:
        return np.asarray(self.jitted(self.variables, ROWS)).tobytes()


def scoped(run: Callable[[], object]) -> ns.Scope:
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        run()
    return scope


def records(scope: ns.Scope) -> list[LayerRecord]:
    return list(scope.artifact.telemetry.layer_snapshots)


def why_not(scope: ns.Scope) -> str:
    """What the scope's span says about layers that were not seen."""
    (span,) = (span for span in scope.artifact.telemetry.spans if span.name == scope.name)
    return "; ".join(span.attributes.get(names.LAYERS_NOT_VISITED, ()))  # type: ignore[arg-type]


def test_one_more_trace_serves_all_scopes_and_the_plain_code_is_kept() -> None:
    """Also scopes in other threads, one after the other."""
    net = Counted()
    expected = net.run()
    for _ in range(3):
        assert len(records(scoped(net.run))) == 2
        assert net.run() == expected
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(records(scoped(net.run)))))
    thread.start()
    thread.join()
    assert found == [2]
    assert net.traces == 2
    assert net.jitted._cache_size() == 2


def test_nothing_is_called_back_outside_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to be ignored."""
    net = Counted()
    scoped(net.run)
    calls: list[object] = []
    monkeypatch.setattr(emission, "_receive", lambda *sent: calls.append(sent))
    net.run()
    jax.effects_barrier()
    assert calls == []
    scoped(net.run)
    assert len(calls) == 2


def test_models_that_a_function_does_not_run_do_not_matter_to_it() -> None:
    """Another model is wrapped, then a third: the function is traced once more, for the first of them."""
    net = Counted()
    scoped(net.run)
    kept: list[Any] = []
    for _ in range(3):
        kept.append(jaxnets.NnxNet())
        ns.Model.wrap(kept[-1])
        assert len(records(scoped(net.run))) == 2
    assert net.traces <= 2


def test_functions_without_layers_are_not_compiled_again(caplog: pytest.LogCaptureFixture) -> None:
    """They are traced, and the plain program is used."""
    net = Counted()
    plain = jax.jit(lambda x: jnp.sin(x) @ x.T + 1)
    plain(ROWS)
    _ = ROWS + 1
    with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"):  # noqa: SIM117
        with ns.Scope("test", max_overhead_pct=1000):
            plain(ROWS)
            _ = ROWS + 1
    assert [r for r in caplog.records if "Finished XLA compilation" in r.getMessage()] == []
    del net


def test_a_static_argument_that_chooses_the_model() -> None:
    """A function known to run one model is traced again when it runs another one."""
    first, second = Counted(), Counted()

    def choose(which: int, x: Any) -> Any:
        net = (first, second)[which]
        return net.model.apply(net.variables, x)

    run = jax.jit(choose, static_argnums=0)
    for which in (0, 1, 0, 1):
        assert len(records(scoped(lambda which=which: run(which, ROWS)))) == 2  # type: ignore[misc]
        extra = jaxnets.NnxNet()  # so that the key changes
        ns.Model.wrap(extra)


def test_code_compiled_ahead_of_time_stays_plain_and_that_is_told() -> None:
    """It outlives the scope in which it is compiled: so it carries nothing of ours."""
    net = Counted()
    lowered: list[Any] = []
    scope = scoped(lambda: lowered.append(net.jitted.lower(net.variables, ROWS).compile()))
    assert "callback" not in lowered[0].as_text()
    assert scoped(lambda: jax.make_jaxpr(net.forward)(net.variables, ROWS)) is not None
    with ns.Scope("jaxpr", max_overhead_pct=1000):
        program = jax.make_jaxpr(net.forward)(net.variables, ROWS)
    assert not program.effects
    scope = scoped(lambda: lowered[0](net.variables, ROWS))
    assert records(scope) == []
    assert "LinenNet: not run, or where it is not observed: compiled ahead of time" in why_not(scope)
    assert len(records(scoped(net.run))) == 2


def test_compiled_code_of_another_thread_is_not_observed_and_that_is_told() -> None:
    """It belongs to whoever works there; a scope of its own observes it."""
    net = Counted()

    def elsewhere() -> None:
        thread = threading.Thread(target=net.run)
        thread.start()
        thread.join()

    scope = scoped(elsewhere)
    assert records(scope) == []
    assert "another thread" in why_not(scope)


def test_two_threads_with_scopes_of_their_own() -> None:
    """Each gets its own records, at the same time, from code of its own."""
    net = Counted()
    barrier = threading.Barrier(2)
    found: list[int] = []

    def work(runs: int) -> None:
        with ns.Scope(f"work {runs}", max_overhead_pct=1000) as scope:
            barrier.wait(60)
            for _ in range(runs):
                net.run()
            barrier.wait(60)
        found.append(len(records(scope)) - 2 * runs)

    threads = [threading.Thread(target=work, args=(runs,)) for runs in (3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0, 0]
    assert net.traces <= 2
    assert not sessions.watching()


@pytest.mark.parametrize("stage", ["measure", "receive"])
def test_a_program_that_cannot_be_compiled_with_us_runs_without(
    stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The user's call gives its result; the scope and the log say that nothing was seen."""
    net = Counted()
    expected = net.run()

    def refuse(*_: object) -> Any:
        raise NotImplementedError("no callbacks on this device")

    if stage == "measure":
        monkeypatch.setattr(emission, "measure", refuse)
    else:
        monkeypatch.setattr(jax.debug, "callback", refuse)
    with caplog.at_level(logging.WARNING, "neuronscope_instrumentation.jax"):
        scope = scoped(lambda: expected == net.run() or pytest.fail("another result"))
    assert records(scope) == []
    assert "compiled without us" in why_not(scope)
    assert "cannot be compiled with layers observed (NotImplementedError)" in caplog.text
    assert "compiled without us" in why_not(scoped(net.run))
    assert net.run() == expected


def test_an_error_of_the_function_itself_is_its_own() -> None:
    """While tracing, and while running."""

    def wrong(x: Any) -> Any:
        return x @ x

    keep = Counted()
    with ns.Scope("test", max_overhead_pct=1000), pytest.raises(TypeError, match="dot_general"):
        jax.jit(wrong)(ROWS)
    del keep


def test_transformations_that_stop_at_effects_are_left_alone() -> None:
    """`jet` knows no callbacks: its result is as without us."""
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))

    def forward(x: Any) -> Any:
        return model(x)

    def run() -> Any:
        return [jet(f, (ROWS,), ((ROWS, ROWS),)) for f in (forward, jax.jit(forward))]

    expected = run()
    ns.Model.wrap(model)
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe("")
        jax.tree.map(np.testing.assert_array_equal, run(), expected)
    assert records(scope) == []
    assert "cannot show it" in why_not(scope)


def test_records_belong_to_the_span_in_which_the_program_was_started() -> None:
    """Though compiled code calls back from threads of its own, and later."""
    net = Counted()
    with ns.Scope("outer", max_overhead_pct=1000) as outer:
        net.run()
        with ns.Scope("inner", max_overhead_pct=1000) as inner:
            net.jitted(net.variables, ROWS)
        net.run()
    assert len(records(inner)) == 2
    assert len(records(outer)) == 6
    spans = {span.span_id: span.name for span in outer.artifact.telemetry.spans}
    assert [spans[record.span_id or 0] for record in records(outer)] == (
        ["outer"] * 2 + ["inner"] * 2 + ["outer"] * 2
    )


def test_what_is_ended_from_another_thread_is_plain_from_the_next_call_on() -> None:
    """As when the budget is exhausted: the end comes from a callback's thread."""
    net = Counted()
    expected = net.run()
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        net.run()
        current = recording.CURRENT.get()
        assert current is not None
        thread = threading.Thread(target=current.end)
        thread.start()
        thread.join()
        assert net.run() == expected
    assert len(records(scope)) == 2
    assert len(records(scoped(net.run))) == 2
    assert net.traces == 2


def test_only_what_is_asked_for_leaves_the_program() -> None:
    """A summary is a dozen scalars; word that a layer ran is nothing at all."""
    model, variables = jaxnets.linen()
    sent: list[tuple[int, ...]] = []
    receive = emission._receive

    def spy(tap: Any, shape: Any, dtype: Any, parts: Any) -> None:
        sent.append(tuple(part.size for part in parts))
        receive(tap, shape, dtype, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emission, "_receive", spy)
        for needs in (ns.Fidelity.CRITICAL, ns.Fidelity.SUMMARY, ns.Fidelity.FULL):

            class Callback:
                def __init__(self, needs: Any) -> None:
                    self.needs = needs

                def __call__(self, _: object) -> None:
                    pass

            undo = ADAPTER.observe_layer(model, "head", Callback(needs))
            jax.jit(model.apply)(variables, ROWS)
            undo()
    assert sent == [(), (4, 3, 2), (6,)]


def test_a_model_defined_inside_a_jitted_function() -> None:
    """`nn.Module`s are often made where they are applied: they are other models, and none that is watched."""
    keep = Counted()

    def forward(x: Any) -> Any:
        return nn.Dense(4).apply({"params": {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}}, x)

    run = jax.jit(forward)
    assert records(scoped(lambda: run(ROWS))) == []
    del keep
