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

# Small libraries that are used if they happen to be there: by `.nsz`, and by OpenTelemetry's SDK.
TAKEN_IF_THERE = {"isal", "psutil"}

# Programs of the demo: started as processes of their own, never imported.
PROGRAMS = {f"{AGENT}/demo/service.py", f"{AGENT}/demo/_convert.py"}

# A generator that runs on a developer's machine or in CI, never in a service: it writes Grafana's JSON by
# Grafana's own library.  Only `neuronscope dashboards` loads it.
GENERATORS = {f"{AGENT}/dashboards/sheet.py": "grafana_foundation_sdk"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module and how it is imported."""

    module: str
    line: int
    typing_only: bool  # under `if TYPE_CHECKING:`

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]


def imports_of(node: ast.AST, *, typing_only: bool = False) -> Iterator[Import]:
    """All imports below `node`, at any depth.  Relative ones stay within their package."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, typing_only)
        elif isinstance(child, ast.ImportFrom):
            if child.level == 0 and child.module:
                yield Import(child.module, child.lineno, typing_only)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from imports_of(ast.Module(child.body, []), typing_only=True)
            yield from imports_of(ast.Module(child.orelse, []), typing_only=typing_only)
        else:
            yield from imports_of(child, typing_only=typing_only)


def direction_breaches(root: str, source: str) -> list[str]:
    """Imports of a package of ours that `root` must not know, not even lazily or for types."""
    return [
        f"{found.line}: imports {found.module}"
        for found in imports_of(ast.parse(source))
        if found.package in OURS - MAY_IMPORT[root]
    ]


def weight_breaches(source: str) -> list[str]:
    """Imports, even lazy ones, of anything but the standard library, core dependencies and ourselves."""
    return [
        f"{found.line}: imports {found.module}"
        for found in imports_of(ast.parse(source))
        if not found.typing_only and found.package not in sys.stdlib_module_names | core_modules() | OURS
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


def is_module(path: Path) -> bool:
    """Whether it can be imported by its name: a public module or package."""
    return path.name[0] not in "_." and (path.suffix == ".py" or (path / "__init__.py").is_file())


def sources(root: str) -> Iterator[tuple[str, str]]:
    """Path and text of every module of a root."""
    for path in sorted((ROOT / root).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.parametrize("root", MAY_IMPORT)
def test_imports_keep_their_direction(root: str) -> None:
    """Implementations know the agent; the agent and the other implementations do not know them."""
    breaches = [f"{path}:{line}" for path, text in sources(root) for line in direction_breaches(root, text)]
    assert breaches == []


def test_the_agent_imports_no_framework() -> None:
    """Not even inside a function: what knows a framework or an SDK is an adapter."""
    breaches = [
        f"{path}:{line}"
        for path, text in sources(AGENT)
        if path not in PROGRAMS
        for line in weight_breaches(text)
        if not (path in GENERATORS and f"imports {GENERATORS[path]}" in line)
    ]
    assert breaches == []


def test_generators_are_loaded_by_their_command_only() -> None:
    """The way to them leads over a lazy import: nothing else of the agent loads the library."""
    program = (
        "import sys, neuronscope.cli.dashboards, neuronscope.dashboards.build; "
        f"sys.exit(any(name in sys.modules for name in {sorted(GENERATORS.values())}))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


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


@pytest.mark.parametrize("root", MAY_IMPORT)
def test_importing_loads_core_dependencies_only(root: str) -> None:
    """`import neuronscope`, each adapter and each exporter load no framework and no provider SDK.

    An adapter that is a package may have modules that import its library: it loads them when it first
    meets an object of that library.
    """
    package = root.partition("/")[2]
    names = [package]
    if root != AGENT:
        names += [f"{package}.{path.stem}" for path in (ROOT / root).iterdir() if is_module(path)]
    script = (
        "import importlib, sys; folders, names = sys.argv[1].split(','), sys.argv[2].split(',')\n"
        "sys.path[:0] = folders; before = set(sys.modules)\n"
        "for name in names: importlib.import_module(name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules.keys() - before})"
    )
    folders = ",".join(str(ROOT / each.partition("/")[0]) for each in MAY_IMPORT)
    command = [sys.executable, "-c", script, folders, ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    owners = packages_distributions()
    allowed = closure(core_distributions()) | TAKEN_IF_THERE | {"neuronscope"}
    loaded = {
        module: {canonicalize_name(name) for name in owners.get(module, ())} for module in done.stdout.split()
    }
    assert package in loaded
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
    ("source", "expected"),
    [
        ("import torch", 1),
        ("def f():\n    import torch", 1),
        ("class A:\n    from torch import nn", 1),
        ("try:\n    import openai\nexcept ImportError:\n    pass", 1),
        ("import json, numpy, opentelemetry.trace\nfrom neuronscope import settings", 0),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", 0),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import grpc", 1),
    ],
)
def test_a_heavy_import_is_seen(source: str, expected: int) -> None:
    """The checker tells run time from type checking, and core dependencies from others."""
    assert len(weight_breaches(source)) == expected
