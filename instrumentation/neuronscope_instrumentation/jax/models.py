"""The models that are, or were, observed: what is known of their layers, and who watches which."""

from __future__ import annotations

import itertools
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

from neuronscope.exceptions import LayerNotFoundError
from neuronscope.native import new_lock
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common import layer_paths
from neuronscope_instrumentation.jax import structure
from neuronscope_instrumentation.jax.structure import EQUINOX, FUNCTION, LINEN, NNX

if TYPE_CHECKING:
    from types import CodeType

    from neuronscope_instrumentation.jax.sessions import Watcher

BLOCKS: Final = "\0blocks"  # no path, though a layer may be called "blocks"
_tokens: Final = itertools.count(1)
_numbered: Final = re.compile(r"^(.*?)[._]?(\d+)$")


class Handle:
    """One model, held weakly.

    A module of linen and a plain function show what layers they have only when they run: then `learned`
    grows.  The others are looked at.

    Attributes:
        token: stands for the model in keys and compiled programs.
        kind: which kind of model it is.
        learned: layers seen so far, by path, in the order they first ran.
        told: why the model may have run unobserved.
        observers: who watches it, in order.
        code: of a plain function.
        described: how it is stored, once somebody asked.
    """

    __slots__ = (
        "_places",
        "_weights",
        "code",
        "described",
        "kind",
        "learned",
        "observers",
        "ref",
        "token",
        "told",
    )

    def __init__(self, model: Any, kind: str) -> None:
        self.ref = weakref.ref(model)
        self.token = next(_tokens)
        self.kind = kind
        self.learned: dict[str, LayerSpec] = {}
        self.told: dict[str, None] = {}
        self.observers: list[Watcher] = []
        self.described: dict[str, Any] | None = None
        self.code: CodeType | None = _code(model) if kind == FUNCTION else None
        self._weights: tuple[str, ...] = ()
        self._places: dict[int, tuple[weakref.ref[Any], str]] = {}
        if kind == LINEN and getattr(model, "scope", None) is not None:
            self.learn_weights(model.variables)

    # --- what layers there are ----------------------------------------------------------------------
    def layers(self) -> list[LayerSpec]:
        """The computing layers without layers below them; at least the model itself."""
        model = self.ref()
        if self.kind in (NNX, EQUINOX):
            return structure.leaf_layers(model)
        paths = self.paths()[1:]
        outer = {part for path in paths for part in _outer(path)} if self.kind == LINEN else set[str]()
        leaves = [self.learned[path] for path in paths if path not in outer]
        return leaves or [LayerSpec("", _name(model))]

    def paths(self) -> list[str]:
        """Paths of all layers known that compute, the model's own first."""
        if self.kind in (NNX, EQUINOX):
            return [path for path, module in structure.walk(self.ref()) if structure.computes(module)]
        found = [path for path in self.learned if path]
        # The order in which layers are learned depends on where the variables come from.
        return ["", *(sorted(found, key=_natural) if self.kind == LINEN else found)]

    def place_of(self, module: Any) -> str | None:
        """Where in the model of nnx or Equinox this very module is."""
        found = self._places.get(id(module))
        if found is None or found[0]() is not module:
            model = self.ref()
            if found is None and self._places and (module is not model or self.kind == EQUINOX):
                return None
            self._places = {
                id(node.module): (weakref.ref(node.module), node.path) for node in structure.walk(model)
            }
            found = self._places.get(id(module))
        return found[1] if found is not None else None

    @property
    def learns(self) -> bool:
        """Are there layers yet to be learned?"""
        return self.kind in (LINEN, FUNCTION) and not any(self.learned)

    def blocks(self) -> list[str]:
        """The outermost groups of numbered layers that are alike; without such, the top-level layers."""
        return _blocks([path for path in self.paths() if path], self._weights)

    def learn(self, path: str, name: str) -> None:
        """A layer has run."""
        if path not in self.learned:
            self.learned[path] = LayerSpec(path, name)

    def learn_weights(self, variables: Any) -> None:
        """A module of linen was given its variables, which are named like its layers."""
        if self._weights:
            return
        parameters = cast("Mapping[str, Any]", variables).get("params", {})
        sizes: dict[str, int] = {}
        _flatten(parameters, (), sizes)
        for path, size in sizes.items():
            known = self.learned.get(path)
            name = known.name if known is not None else path.rpartition(".")[2]
            self.learned[path] = LayerSpec(path, name or _name(self.ref()), None, size)
        self._weights = tuple(sizes)

    def names(self, pattern: str, path: str) -> bool:
        """Does a pattern (or ``blocks``) name a layer?"""
        return path in self.blocks() if pattern == BLOCKS else layer_paths.names(pattern, path)

    # --- patterns -------------------------------------------------------------------------------------
    def match(self, pattern: str) -> list[str]:
        """See `JaxAdapter.match_layers`."""
        known = self.paths()
        if "*" not in pattern:
            if pattern not in known and not self.learns:
                raise self.not_found(pattern)
            return [pattern]
        found = [path for path in known if path and layer_paths.names(pattern, path)]
        if not found:
            raise self.not_found(pattern)
        return found

    def not_found(self, wanted: str) -> LayerNotFoundError:
        """The error that names what is close."""
        name = _name(self.ref())
        if self.learns:
            return LayerNotFoundError(
                f"{name} shows its layers only when it runs: no pattern such as {wanted!r} can be looked up "
                "before. Run it once in a scope, wrap model.bind(variables), or name layers by their paths"
            )
        paths = [path for path in self.paths() if path]
        return layer_paths.not_found(name, paths, wanted)


# --- handles ----------------------------------------------------------------------------------------------
_lock: Final = new_lock()
_handles: Final[dict[int, Handle]] = {}
_by_token: Final[dict[int, Handle]] = {}


def handle(model: Any) -> Handle:
    """The handle of a model; made at the first request.  By identity: many models have no hash."""
    with _lock:
        found = _handles.get(id(model))
        if found is None or found.ref() is not model:
            found = _handles[id(model)] = Handle(model, structure.kind_of(model) or FUNCTION)
            _by_token[found.token] = found
            weakref.finalize(model, _forget, id(model), found.token).atexit = False
        return found


def known(model: Any) -> Handle | None:
    """The handle of a model, if it has one."""
    found = _handles.get(id(model))
    return found if found is not None and found.ref() is model else None


def watched(kinds: Iterable[str]) -> list[Handle]:
    """The handles of these kinds that somebody watches."""
    wanted = set(kinds)
    return [found for found in list(_handles.values()) if found.observers and found.kind in wanted]


def by_token(token: int) -> Handle | None:
    """The handle that a token stands for, while its model lives."""
    return _by_token.get(token)


def _forget(key: int, token: int) -> None:
    found = _by_token.pop(token)
    if _handles.get(key) is found:
        del _handles[key]
    for observer in list(found.observers):
        observer.remove()


# --- helpers ------------------------------------------------------------------------------------------------
def _blocks(paths: list[str], weights: Iterable[str]) -> list[str]:
    """Groups of at least two alike numbered siblings with something below them, the outermost ones."""
    inner = {outer for path in (*paths, *weights) for outer in _outer(path)}
    found: list[str] = []
    for path in paths:
        number = _numbered.match(path)
        if number is None or path not in inner or any(path.startswith(f"{block}.") for block in found):
            continue
        found.append(path)
    groups = Counter(cast("re.Match[str]", _numbered.match(path)).group(1) for path in found)
    repeated = [p for p in found if groups[cast("re.Match[str]", _numbered.match(p)).group(1)] >= 2]
    if repeated:
        return repeated
    top = [path for path in paths if not any(outer in paths for outer in _outer(path))]
    return top or [""]


def _natural(path: str) -> list[Any]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", path)]


def _outer(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:number]) for number in range(1, len(parts))]


def _flatten(tree: Any, path: tuple[str, ...], sizes: dict[str, int]) -> None:
    if not isinstance(tree, Mapping):
        return
    below = cast("Mapping[str, Any]", tree)
    own = [value for value in below.values() if not isinstance(value, Mapping)]
    sizes[".".join(path)] = sum(int(getattr(_plain(value), "size", 0)) for value in own)
    for name, value in below.items():
        _flatten(value, (*path, name), sizes)


def _plain(value: Any) -> Any:
    """What linen's metadata boxes (``nn.Partitioned``) hold."""
    return value.unbox() if hasattr(value, "unbox") else value


def _code(function: Any) -> CodeType | None:
    while True:
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    if code is None:
        method = next(
            (vars(kind)["__call__"] for kind in type(function).__mro__ if "__call__" in vars(kind)), None
        )
        code = getattr(method, "__code__", None)
    return cast("CodeType | None", code)


def _name(model: Any) -> str:
    # Asking a module of linen for what it has not makes it set itself up.
    return model.__name__ if isinstance(model, FunctionType) else type(model).__name__
