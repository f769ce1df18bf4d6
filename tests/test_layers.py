"""The three source roots keep their direction, and imports stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
AGENT = "agent/neuronscope"
INSTRUMENTATION = "instrumentation/neuronscope_instrumentation"
EXPORTERS = "exporters/neuronscope_exporters"

# Which of our packages each root may import; the registry reaches the others by string.
MAY_IMPORT = {
    AGENT: {"neuronscope"},
    INSTRUMENTATION: {"neuronscope", "neuronscope_instrumentation"},
    EXPORTERS: {"neuronscope", "neuronscope_exporters"},
}
OURS = {"neuronscope", "neuronscope_instrumentation", "neuronscope_exporters"}

# Programs of the demo: started as processes of their own, never imported.
PROGRAMS = {f"{AGENT}/demo/service.py", f"{AGENT}/demo/_convert.py"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module and how it is imported."""

    module: str
    line: int
    lazy: bool  # inside a function: runs only when called
    typing_only: bool  # under `if TYPE_CHECKING:`

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]


def imports_of(node: ast.AST, *, lazy: bool = False, typing_only: bool = False) -> Iterator[Import]:
    """All imports below `node`, in source order.  Relative ones stay within their package."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, lazy, typing_only)
        elif isinstance(child, ast.ImportFrom):
            if child.level == 0 and child.module:
                yield Import(child.module, child.lineno, lazy, typing_only)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for statement in child.body:
                yield from imports_of(ast.Module([statement], []), lazy=lazy, typing_only=True)
            for statement in child.orelse:
                yield from imports_of(ast.Module([statement], []), lazy=lazy, typing_only=typing_only)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(child, lazy=lazy or is_function, typing_only=typing_only)


def direction_breaches(root: str, source: str) -> list[str]:
    """Imports of a package of ours that `root` must not know, not even lazily or for types."""
    return [
        f"{found.line}: imports {found.module}"
        for found in imports_of(ast.parse(source))
        if found.package in OURS - MAY_IMPORT[root]
    ]


def weight_breaches(root: str, source: str) -> list[str]:
    """Imports of anything but the standard library, core dependencies and ourselves.

    Adapters and exporters may import their library inside a function.  The agent may not at all.
    """
    return [
        f"{found.line}: imports {found.module}"
        for found in imports_of(ast.parse(source))
        if not found.typing_only
        and not (found.lazy and root != AGENT)
        and found.package not in sys.stdlib_module_names | core_modules() | OURS
    ]


@cache
def core_distributions() -> frozenset[str]:
    """Distributions that every install has, by what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return frozenset(canonicalize_name(Requirement(line).name) for line in project["dependencies"])


@cache
def core_modules() -> frozenset[str]:
    """Top-level modules of the core distributions."""
    return frozenset(
        module
        for module, names in packages_distributions().items()
        if core_distributions() & {canonicalize_name(name) for name in names}
    )


def closure(distributions: frozenset[str]) -> set[str]:
    """The distributions and all that they depend on here."""
    found: set[str] = set()
    waiting = set(distributions)
    while waiting:
        name = waiting.pop()
        found.add(name)
        try:
            needs = [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:  # a dependency of another platform
            continue
        waiting |= {
            canonicalize_name(need.name)
            for need in needs
            if need.marker is None or need.marker.evaluate({"extra": ""})
        } - found
    return found


def sources(root: str) -> Iterator[tuple[str, str]]:
    """Path and text of every module of a root."""
    for path in sorted((ROOT / root).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.parametrize("root", MAY_IMPORT)
def test_imports_keep_their_direction(root: str) -> None:
    """Implementations know the agent; the agent and the other implementations do not know them."""
    breaches = [f"{path}:{line}" for path, text in sources(root) for line in direction_breaches(root, text)]
    assert breaches == []


@pytest.mark.parametrize("root", MAY_IMPORT)
def test_no_framework_is_imported_with_a_module(root: str) -> None:
    """Importing any module of ours needs the core dependencies only."""
    breaches = [
        f"{path}:{line}"
        for path, text in sources(root)
        if path not in PROGRAMS
        for line in weight_breaches(root, text)
    ]
    assert breaches == []


def test_programs_are_never_imported() -> None:
    """The demo's programs import frameworks, so no module may import the programs."""
    names = {path.removeprefix("agent/").removesuffix(".py").replace("/", ".") for path in PROGRAMS}
    assert all((ROOT / path).is_file() for path in PROGRAMS)
    importers = [
        f"{path}:{found.line}"
        for root in MAY_IMPORT
        for path, text in sources(root)
        for found in imports_of(ast.parse(text))
        if found.module in names
    ]
    assert importers == []


def test_import_neuronscope_loads_core_dependencies_only() -> None:
    """`import neuronscope` in a fresh interpreter loads no framework and no provider SDK."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules); import neuronscope; "
        "print(*{name.partition('.')[0] for name in sys.modules.keys() - before})"
    )
    command = [sys.executable, "-c", script, str(ROOT / "agent")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    owners = packages_distributions()
    allowed = closure(core_distributions()) | {"neuronscope"}
    loaded = {
        module: {canonicalize_name(name) for name in owners.get(module, ())} for module in done.stdout.split()
    }
    assert "neuronscope" in loaded
    assert [module for module, names in loaded.items() if names and not names & allowed] == []


@pytest.mark.parametrize(
    ("root", "source", "expected"),
    [
        (AGENT, "import neuronscope_exporters.otlp", 1),
        (AGENT, "def f():\n    from neuronscope_instrumentation import torch", 1),
        (AGENT, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import neuronscope_exporters", 1),
        (INSTRUMENTATION, "from neuronscope_exporters import nsz", 1),
        (EXPORTERS, "import neuronscope_instrumentation", 1),
        (EXPORTERS, "from neuronscope.settings import Settings\nimport neuronscope_exporters.otlp", 0),
        (INSTRUMENTATION, "from . import torch\nimport neuronscope.engine", 0),
    ],
)
def test_a_wrong_direction_is_seen(root: str, source: str, expected: int) -> None:
    """The checker finds imports of every form, so that a clean result means something."""
    assert len(direction_breaches(root, source)) == expected


@pytest.mark.parametrize(
    ("root", "source", "expected"),
    [
        (AGENT, "import torch", 1),
        (AGENT, "def f():\n    import torch", 1),
        (AGENT, "try:\n    import openai\nexcept ImportError:\n    pass", 1),
        (AGENT, "import json, numpy, opentelemetry.trace\nfrom neuronscope import settings", 0),
        (INSTRUMENTATION, "class A:\n    from torch import nn", 1),
        (INSTRUMENTATION, "def f():\n    import torch", 0),
        (INSTRUMENTATION, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", 0),
        (EXPORTERS, "import grpc", 1),
        (
            EXPORTERS,
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import grpc",
            1,
        ),
    ],
)
def test_a_heavy_import_is_seen(root: str, source: str, expected: int) -> None:
    """The checker tells module level from functions, and run time from type checking."""
    assert len(weight_breaches(root, source)) == expected
