"""How far an adapter fits the library that is installed: found, missing, not observed."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from neuronscope.doctor.surfaces import SURFACES
from neuronscope.engine.wrap import Installation
from neuronscope.exceptions import NeuronscopeError
from neuronscope.instrumentation import ClientIntegration, ExaminableBackend
from neuronscope.instrumentation.registry import BACKENDS, CLIENTS, Entry, client, client_names

State = Literal["observed", "partly", "not installed", "disabled", "broken"]
_PARTS: Final = ("==", ">=", "<=", "~=", "!=", ">", "<")


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """One library.

    Attributes:
        distribution: as pip knows it.
        version: what is installed; empty if nothing is.
        requires: the versions that the adapter is made for.
        fits: is the installed one among them?
        wrapped: methods that were found and can be observed; of a model runtime, private functions of the
            library that were found.
        absent: methods that the adapter knows and this version does not have.
        gaps: public methods that are not observed, with the reason.
        unknown: public methods that look as if a model worked for them, of which the adapter knows nothing:
            the library is newer than the adapter.
        problem: why the adapter could not be tried.
        seen: when a call of it was first recorded, in seconds since 1970, if a recording was looked at.
    """

    name: str
    kind: str
    state: State
    distribution: str
    version: str = ""
    requires: str = ""
    fits: bool = True
    wrapped: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    gaps: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    problem: str = ""
    seen: float | None = None


def library_names() -> list[str]:
    """All adapters, of clients and of model runtimes."""
    return [*client_names(), *BACKENDS]


def distribution(name: str) -> str:
    """What pip calls an adapter's library."""
    entry = CLIENTS.get(name) or BACKENDS.get(name) or Entry("", name)
    return entry.distribution


def installed(name: str) -> str:
    """The version of an adapter's library; "" if it is not installed."""
    try:
        return version(distribution(name))
    except PackageNotFoundError:
        return ""


def examine_library(name: str, *, disabled: Sequence[str] = (), seen: float | None = None) -> LibraryReport:
    """Import what the adapter wraps, wrap it, look, and undo it.

    Args:
        disabled: adapters that the settings leave alone.
        seen: when a call of it was first recorded.
    """
    pip, found_version = distribution(name), installed(name)
    if not found_version:
        return LibraryReport(name, "", "not installed", pip)
    if name in BACKENDS:
        return _runtime(name, BACKENDS[name], found_version, seen)
    try:
        integration = client(name)
        found = _wrap(integration)
    except (NeuronscopeError, ImportError) as error:
        return LibraryReport(
            name, "", "broken", pip, found_version, problem=f"{type(error).__name__}: {error}"
        )
    absent = tuple(sorted(found.missing))
    state: State = "observed" if not absent else "partly" if found.installed else "broken"
    return LibraryReport(
        name,
        integration.kind.value,
        "disabled" if name in disabled else state,
        pip,
        found_version,
        integration.requires,
        fits=_fits(found_version, integration.requires),
        wrapped=tuple(sorted(found.installed)),
        absent=absent,
        gaps=tuple((gap.target, gap.why) for gap in integration.gaps),
        unknown=_unknown(integration),
        seen=seen,
    )


def _runtime(name: str, entry: Entry, installed: str, seen: float | None) -> LibraryReport:
    """A model runtime: only one that stands on private names of its library has something to tell."""
    backend: Any = entry.load()
    found: Mapping[str, bool] = {}
    problem = ""
    if isinstance(backend, ExaminableBackend):
        try:
            found = backend.private_names()
        except (ImportError, AttributeError) as error:  # also a library that is built in another way
            problem = f"{type(error).__name__}: {error}"
    absent = tuple(sorted(key for key, there in found.items() if not there))
    return LibraryReport(
        name,
        "model runtime",
        "broken" if problem else "partly" if absent else "observed",
        entry.distribution,
        installed,
        wrapped=tuple(sorted(key for key, there in found.items() if there)),
        absent=absent,
        problem=problem,
        seen=seen,
    )


def _unknown(integration: ClientIntegration) -> tuple[str, ...]:
    surface = next((surface for surface in SURFACES if surface.name == integration.name), None)
    if surface is None:
        return ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that an SDK keeps for those who import them
        try:
            return tuple(sorted(surface.unknown(gap.target for gap in integration.gaps)))
        except (ImportError, AttributeError):  # this release is built in another way
            return ()


# What importing some libraries would do besides: ask the network for a list of prices.
_QUIET: Final = {"litellm": {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}}


def _wrap(integration: ClientIntegration) -> Installation:
    for variable, value in _QUIET.get(integration.name, {}).items():
        os.environ.setdefault(variable, value)
    targets = [
        *(method.target for method in integration.methods if not method.optional),
        *(handoff.target for handoff in integration.handoffs),
        *integration.copies,
        *integration.modules,
    ]
    for module in dict.fromkeys(target.partition(":")[0] for target in targets):
        if module not in sys.modules:
            _import(module)
    installation = Installation(integration)
    installation.install()
    installation.uninstall()
    return installation


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that this version does not have: what is in it will be told as absent.
        if error.name is None or not module.startswith(error.name):
            raise


def _fits(installed: str, requires: str) -> bool:
    """Is the version among those required?  Only lower bounds are ever stated."""
    for part in requires.split(","):
        for operator in _PARTS:
            _, found, bound = part.partition(operator)
            if found:
                if operator == ">=" and _numbers(installed) < _numbers(bound):
                    return False
                break
    return True


def _numbers(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.strip().split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
