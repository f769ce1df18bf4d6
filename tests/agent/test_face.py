"""`import neuronscope as ns`: every name is there, declared once, and loaded when first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import neuronscope as ns


@pytest.mark.parametrize("name", ns.__all__)
def test_every_public_name_loads(name: str) -> None:
    """What `__all__` promises exists."""
    assert getattr(ns, name) is not None


def test_all_is_complete_and_sorted() -> None:
    """The lazy tables, the imports for type checkers and `__all__` name the same things."""
    source = ast.parse(Path(ns.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.asname or alias.name
        for block in source.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    lazy = set(vars(ns)["_NAMES"]) | set(vars(ns)["_MODULES"])
    assert set(ns.__all__) == lazy | {"__version__"} == typed | {"__version__"}
    assert sorted(ns.__all__) == dir(ns)


@pytest.mark.parametrize("module", ["hooks", "interventions", "probes", "registry", "testing"])
def test_completion_shows_what_is_public(module: str) -> None:
    """`ns.probes.<Tab>`: what is for users, each of which is there, and nothing that the module imports."""
    found = getattr(ns, module)
    assert dir(found) == sorted(found.__all__)
    for name in dir(found):
        assert getattr(found, name).__module__.startswith("neuronscope.")
        assert getattr(found, name).__doc__, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Not an import error."""
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = ns.no_such_thing


def test_the_specifications_names_are_there() -> None:
    """Each name that the customer's examples use."""
    for name in (
        "Scope", "Model", "Dataset", "Platform", "BackendAdapter", "LayerSpec", "TensorSnapshot",
        "OverheadBudgetExceeded", "fingerprint", "load", "flush", "instrument", "uninstrument",
    ):  # fmt: skip
        assert callable(getattr(ns, name)), name
    assert callable(ns.hooks.instrument_openai)
    assert callable(ns.registry.register_adapter)
    assert callable(ns.Dataset.wrap_vector_store)
    assert callable(ns.TensorSnapshot.from_numpy)
    assert issubclass(ns.probes.LayerActivations, ns.probes.Probe)


def test_names_do_not_depend_on_the_order_of_imports() -> None:
    """A submodule that was imported first does not hide the name of the face."""
    code = (
        "import neuronscope.fingerprints, neuronscope.platform, neuronscope.model, neuronscope as ns;"
        "print(callable(ns.fingerprint), callable(ns.Model), callable(ns.Platform))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True True"
