"""How exporters are found and made; the readers and writers of files, too."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, cast

from neuronscope.exceptions import MissingDependencyError
from neuronscope.exporters import (
    BUILT_IN,
    ENTRY_POINT_GROUP,
    Examination,
    Exporter,
    ExporterContext,
    ExporterFactory,
)


def resolve(target: str, distribution: str, extra: str | None = None) -> Any:
    """The object at ``"module:object"``.

    Raises:
        MissingDependencyError: a package that it needs is not installed.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == module.partition(".")[0]:
            raise
        raise MissingDependencyError(target, error.name or distribution, extra) from error


def nsz(name: str) -> Callable[..., Any]:
    """A function of the `.nsz` implementation: ``read``, ``write`` or ``merge``."""
    _, distribution, extra = BUILT_IN["nsz"]
    return cast("Callable[..., Any]", resolve(f"neuronscope_exporters.nsz:{name}", distribution, extra))


def make_exporters(
    context: ExporterContext, count_exported: Callable[[str, str, int], None]
) -> Sequence[Exporter]:
    """All exporters that the settings configure.

    Raises:
        ConfigError: an exporter's setting cannot be used.
    """
    factories: dict[str, ExporterFactory] = {
        name: resolve(*entry) for name, entry in BUILT_IN.items() if _wanted(name, context)
    }
    for point in entry_points(group=ENTRY_POINT_GROUP):
        factories.setdefault(point.name, point.load())
    made = (
        factory(replace(context, count_exported=partial(count_exported, name)))
        for name, factory in factories.items()
    )
    return [exporter for exporter in made if exporter is not None]


def configured(context: ExporterContext) -> list[str]:
    """The built-in exporters that the settings ask for."""
    return [name for name in BUILT_IN if _wanted(name, context)]


def examiner(name: str) -> Callable[[ExporterContext], Iterable[Examination]]:
    """What finds out whether the observations that a built-in exporter sends arrive."""
    target, distribution, extra = BUILT_IN[name]
    module = target.partition(":")[0]
    return cast(
        "Callable[[ExporterContext], Iterable[Examination]]",
        resolve(f"{module}.examine:examine", distribution, extra),
    )


def _wanted(name: str, context: ExporterContext) -> bool:
    """Does any setting ask for this exporter?  Spares the import of the others."""
    settings = context.settings
    if name == "nsz":
        return bool(settings.nsz)
    if name == "prometheus":
        return bool(settings.prometheus)
    return any(
        (
            settings.otlp_endpoint,
            settings.otlp_traces_endpoint,
            settings.otlp_metrics_endpoint,
            settings.otlp_logs_endpoint,
            settings.traces_exporter == "otlp",
            settings.metrics_exporter == "otlp",
            settings.logs_exporter == "otlp",
        )
    )
