"""Which modules a model has: the layers, the blocks, and what a pattern names."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, cast

import torch
from torch import nn

from neuronscope.exceptions import LayerNotFoundError
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common import layer_paths
from neuronscope_instrumentation.torch.internals import COMPILED_CALL, has_compiled_code

_MIN_SHARE: Final = 0.1  # of the largest block list's parameters that another list must have
# Their forward may hand all the work to one kernel that reads the submodules' weights.
_NOTHING: Final = nn.Module.__dict__["forward"]  # what a class has that computes nothing
_FUSING: Final = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


def leaf_layers(model: nn.Module) -> list[LayerSpec]:
    """The computing modules without computing submodules."""
    return [
        LayerSpec(path, type(module).__name__, None, _own_parameters(module))
        for path, module in _modules(model)
        if computes(module) and not any(computes(child) for child in _below(module))
    ]


def find_layer(model: nn.Module, path: str) -> nn.Module:
    """The module at a path (``""``: the model).

    Raises:
        LayerNotFoundError: there is none, or it only holds others and never runs.
    """
    module: Any = model
    try:
        for part in _parts(path):  # `_line`, of which this needs the end only
            module = module._modules[part]
    except (KeyError, AttributeError):  # there is none, or None in the place of what holds it
        raise _not_found(model, path) from None
    if module is None:
        raise _not_found(model, path)
    if not computes(module):
        raise LayerNotFoundError(
            f"{path!r} is a {type(module).__name__}: it holds layers and never runs itself. "
            f"Watch what it holds: {path}.*"
        )
    found: nn.Module = module
    return found


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    """The names on a path.  Remembered: whoever samples asks for the same ones each time."""
    return tuple(map(sys.intern, path.split("."))) if path else ()


def match_layers(model: nn.Module, pattern: str) -> list[str]:
    """See `TorchAdapter.match_layers`."""
    if "*" not in pattern:
        find_layer(model, pattern)
        return [pattern]
    expression = layer_paths.expression(pattern)
    found: dict[int, str] = {}
    for path, module in _all_paths(model):
        if path and expression.fullmatch(path) and computes(module):
            found.setdefault(id(module), path)
    if not found:
        raise _not_found(model, pattern)
    return list(found.values())


def pattern_matches(pattern: str, path: str) -> bool:
    """Does a pattern name a path?"""
    return layer_paths.names(pattern, path)


def block_paths(model: nn.Module) -> list[str]:
    """See `TorchAdapter.block_paths`."""
    lists = dict(_block_lists(model, nn.ModuleList)) or dict(_block_lists(model, nn.Sequential))
    if not lists:
        return [path for path, child in model.named_children() if computes(child)]
    sizes = {path: _all_parameters(blocks) for path, blocks in lists.items()}
    enough = max(sizes.values()) * _MIN_SHARE
    return [
        f"{path}.{name}" if path else name
        for path, blocks in lists.items()
        if sizes[path] >= enough
        for name, _ in blocks.named_children()
    ]


def why_not_visited(model: nn.Module, path: str) -> str:
    """See `TorchAdapter.not_visited`."""
    line = list(_line(model, path))
    if any(isinstance(module, torch.jit.ScriptModule) for module in line[:-1]):
        return "scripted"
    if any(_is_compiled(module) for module in line):
        return "compiled"
    if any(isinstance(module, _FUSING) for module in line[:-1]):
        return "fused"
    return "not run"


def _is_compiled(module: nn.Module) -> bool:
    kind = type(module)
    return (
        module.__dict__.get(COMPILED_CALL) is not None
        or (kind.__module__, kind.__name__) == ("torch._dynamo.eval_frame", "OptimizedModule")
        or has_compiled_code(_forward(module))
    )


def _line(model: nn.Module, path: str) -> Iterator[nn.Module]:
    """The modules from the model down to the path; KeyError where there is none."""
    module: Any = model
    yield module
    for part in _parts(path):
        module = module._modules[part]  # `get_submodule` refuses TorchScript, and runs __getattr__
        yield module


def _modules(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Paths and modules; one under several paths comes under the first."""
    return cast(Iterable[tuple[str, nn.Module]], model.named_modules())


def _all_paths(
    module: nn.Module, path: str = "", around: frozenset[int] = frozenset()
) -> Iterator[tuple[str, nn.Module]]:
    """Paths and modules; one under several paths comes under each, but never within itself."""
    yield path, module
    around |= {id(module)}
    for name, child in cast(Any, module)._modules.items():
        if child is not None and id(child) not in around:
            yield from _all_paths(child, f"{path}.{name}" if path else name, around)


def computes(module: nn.Module) -> bool:
    """False for containers that only hold modules or parameters."""
    own: object = type(module).__dict__.get("forward")  # as `_forward` finds it for nearly all, in one step
    if own is not None and own is not _NOTHING:
        return True
    return "forward" in module.__dict__ or _forward(module) is not _NOTHING


def _forward(module: nn.Module) -> object:
    """The function that defines what the module computes, without binding it."""
    return next((vars(kind)["forward"] for kind in type(module).__mro__ if "forward" in vars(kind)), None)


def _below(module: nn.Module) -> Iterator[nn.Module]:
    modules = module.modules()
    next(modules)
    return modules


def _own_parameters(module: nn.Module) -> int:
    return sum(_size(parameter) for parameter in module.parameters(recurse=False))


def _all_parameters(module: nn.Module) -> int:
    return sum(_size(parameter) for parameter in module.parameters())


def _size(parameter: nn.Parameter) -> int:
    return 0 if isinstance(parameter, nn.UninitializedParameter) else parameter.numel()


def _block_lists(model: nn.Module, kind: type[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The outermost lists of at least two alike modules that have an inner structure."""
    taken: list[str] = []
    for path, module in _modules(model):
        if not isinstance(module, kind) or any(path.startswith(f"{outer}.") for outer in taken):
            continue
        blocks = [child for child in module.children() if next(child.children(), None) is not None]
        counts = Counter(map(type, blocks)).most_common(1)
        # "most": hybrids such as Jamba mix two kinds of block in one list
        if (
            len(blocks) >= 2
            and len(blocks) == len(list(module.children()))
            and counts[0][1] * 2 >= len(blocks)
        ):
            if path:
                taken.append(path)
            yield path, module


def _not_found(model: nn.Module, wanted: str) -> LayerNotFoundError:
    paths = [path for path, module in _modules(model) if path and computes(module)]
    return layer_paths.not_found(type(model).__name__, paths, wanted)
