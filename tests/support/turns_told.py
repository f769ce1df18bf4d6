"""What a trace does, told line by line: compiled code and its twin in Python must tell the same.

python tests/support/turns_told.py
"""

# What a trace gives is Any; torch leaves parts of itself untyped.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import neuronscope as ns
from neuronscope.interventions import InterventionError
from tracednets import Blocks, X, blocks, left_on


def told() -> list[str]:
    """Every scene, in this process."""
    torch.set_num_threads(1)
    lines: list[str] = []
    for scene in SCENES:
        net = blocks()
        model = ns.Model.wrap(net)
        for turn in range(3):  # in the second a trace finds the sites of the first
            try:
                lines.extend(f"{scene.__name__} {turn}: {line}" for line in scene(model, net))
            except (InterventionError, AttributeError, IndexError, RuntimeError) as error:
                lines.append(f"{scene.__name__} {turn}: {type(error).__name__}: {_words(error)}")
            lines.append(f"{scene.__name__} {turn} left: {left_on(net)}, {_number(net(X))}")
    return lines


def _number(value: Any) -> str:
    tensor = value if isinstance(value, torch.Tensor) else next(v for v in value if torch.is_tensor(v))
    return f"{tuple(tensor.shape)} {float(tensor.detach().double().sum()):.6f}"


def _words(error: Exception) -> str:
    """Without lines of files."""
    return " ".join(word for word in str(error).split() if ".py:" not in word)[:200]


def reads(model: ns.Model, _: Blocks) -> Iterator[str]:
    """By path, attribute, number; again while the model waits."""
    with model.trace(X) as t:
        yield _number(t["h.0"].output)
        yield _number(t.h[1].lin.input)
        yield str(t.h[1] is t["h.1"] is t["h"][1] is t[0][1])
        yield _number(t.h[1].output)
        yield _number(t.h[1].inputs[0])
        yield _number(t.head.output)
        yield _number(t.output)
        yield f"{[(site.path, site.visits, bool(site.here)) for site in t.sites()]}"
    yield _number(t.result)


def writes(model: ns.Model, _: Blocks) -> Iterator[str]:
    """Outputs, inputs, in place, skipped, refused."""
    with torch.no_grad(), model.trace(X) as t:
        t.h[0].lin.input = t.h[0].lin.input * 2
        t.h[0].lin.output = t.h[0].lin.output + 1
        t.h[1].replace_first(t.h[1].output[0] * 3)
        args, kwargs = t.h[2].inputs
        t.h[2].inputs = (args[0] * 2, *args[1:]), kwargs
        t.h[2].lin.skip(torch.ones(2, 8))
        wrongs: tuple[Any, ...] = (torch.ones(3, 8), torch.ones(2, 8).double(), None, 3)
        for wrong in wrongs:
            try:
                t.head.output = wrong
            except InterventionError as error:
                yield _words(error)
        t.head.first[0, 0] = 7.0
    yield _number(t.result)


def misses(model: ns.Model, _: Blocks) -> Iterator[str]:
    """Sites that have passed, or do not exist."""
    with model.trace(X) as t:
        for wrong in ("nothing", "h.9"):
            try:
                yield repr(t[wrong])
            except (InterventionError, LookupError, ns.NeuronscopeError) as error:
                yield f"{type(error).__name__}"
        try:
            yield repr(t.h.nothing)
        except AttributeError as error:
            yield _words(error)
        yield _number(t.h[2].output)
        yield _number(t.h[0].output)


def keeps(model: ns.Model, _: Blocks) -> Iterator[str]:
    """Kept outputs: plain ones, tuples, copies, with inputs; one that is changed in place afterwards."""
    with torch.no_grad(), model.trace(X) as t:
        plain, copied, full = t.cache("**"), t.cache("head", clone=True), t.cache("head", inputs=True)
        _ = t.result
    yield f"{list(plain)}, {[len(plain[path]) for path in plain]}"
    yield _number(plain.output("h.0"))
    yield _number(plain.output("head"))
    yield f"{_number(copied.output('head'))}, {_number(full['head'][0].args)}"
    plain["head"][0].output.zero_()
    try:
        yield _number(plain.output("head"))
    except InterventionError as error:
        yield _words(error)
    yield _number(copied.output("head"))
    with model.trace(X.clone().requires_grad_()) as t:
        kept = t.cache("head")
        _ = t.result
    yield f"{kept.output('head').requires_grad}, {kept.output('head').grad_fn}"


def functions(model: ns.Model, _: Blocks) -> Iterator[str]:
    """Torch functions read, replaced, missed; counted anew in each step."""
    with model.trace(X) as t:
        yield _number(t.h[0].ops["linear"][0].output)
        t.h[1].ops["relu"][0].output = torch.ones(2, 8)
        yield _number(t.h[1].output)
        held = t.h[2].ops["relu"][0]
    try:
        yield _number(held.output)
    except InterventionError as error:
        yield _words(error)
    with model.trace(X, 3, method="rollout") as t:
        yield str([_number(t.h[0].ops["relu"][0].output) for _ in t.steps])
    with model.trace(X) as t:
        try:
            yield _number(t.h[0].ops["conv2d"][0].output)
        except InterventionError as error:
            yield _words(error)


def steps(model: ns.Model, _: Blocks) -> Iterator[str]:
    """A repeated run: read, edited, left before its end."""
    with model.trace(X, 3, method="rollout") as t:
        for number in t.steps:
            t.head.output = t.head.output * (number + 1)
            yield f"{number} {_number(t.head.output)}"
    yield _number(t.result)
    with model.trace(X, 3, method="rollout") as t:
        for _ in t.steps:
            t.stop()
            break
    yield repr(t)


def modes(model: ns.Model, _: Blocks) -> Iterator[str]:
    """Each side keeps its own thread state."""
    with torch.inference_mode(), model.trace(X) as t:
        kept = t.cache("head")
        yield f"{t.h[0].output[0].is_inference()} {_number(t.result)} {_number(kept.output('head'))}"
    with model.trace(X) as t:
        with torch.no_grad():
            inside = t.h[0].output[0]
        yield f"{inside.requires_grad} {t.h[1].output[0].requires_grad}"


def fails(model: ns.Model, net: Blocks) -> Iterator[str]:
    """The model's own AttributeError, which is none of the site's."""
    linear: Any = net.h[1].get_submodule("lin")
    weight = linear.weight
    del linear.weight
    try:
        with model.trace(X) as t:
            yield _number(t.h[1].output)
    finally:
        linear.weight = weight


def hooks(model: ns.Model, net: Blocks) -> Iterator[str]:
    """A module's own hooks, those registered meanwhile, every module's, another forward, a jit trace."""
    seen: list[str] = []

    def hook(module: nn.Module, _: Any, __: Any) -> None:
        seen.append(type(module).__name__)

    first: Any = net.h[0]
    handle = first.lin.register_forward_hook(hook)
    with model.trace(X) as t:
        _ = t.h[0].lin.output
        late = net.head.register_forward_hook(hook)
        _ = t.head.output
    handle.remove()
    late.remove()
    yield str(seen)
    everywhere = torch.nn.modules.module.register_module_forward_hook(hook)
    with model.trace(X) as t:
        _ = t.head.output
    everywhere.remove()
    yield str(len(seen))
    head: Any = net.head
    head.forward = lambda x: x * 0  # as tools do
    with model.trace(X) as t:
        yield _number(t.head.output)
    del head.forward
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jit: Any = torch.jit
        with model.trace(method=lambda: jit.trace(net, X)) as t:
            _ = t.h[1].lin.output
        yield f"{'__module.h.1' in str(t.result.inlined_graph)} {_number(t.result(X))}"


def neighbours(model: ns.Model, net: Blocks) -> Iterator[str]:
    """Another trace within, a plain call in the body, an edit that lasts."""
    with model.trace(X) as t:
        _ = t.h[0].output
        with model.trace(X * 2) as inner:
            yield _number(inner.h[0].output)
            yield _number(net(X))
            yield _number(inner.h[1].output)
        yield _number(t.h[1].output)
    edit = model.edits.add("twice", "head", lambda h: h * 2)
    with model.trace(X) as t:
        yield _number(t.head.output)
    edit.remove()
    with ns.Model.wrap(net).trace(X) as t:
        yield _number(t.head.output)


SCENES: tuple[Callable[[Any, Blocks], Iterator[str]], ...] = (
    reads, writes, misses, keeps, functions, steps, modes, fails, hooks, neighbours,
)  # fmt: skip


if __name__ == "__main__":
    print("\n".join(told()))
