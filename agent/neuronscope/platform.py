"""The process-wide agent: settings, engine, exporters, and what is instrumented."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from neuronscope import native
from neuronscope.dumping import dump_on_signal, leave_signal
from neuronscope.engine import ENGINE
from neuronscope.engine.content import Redactor
from neuronscope.engine.context import EXECUTORS
from neuronscope.engine.guard import GUARD
from neuronscope.engine.imports import after_import
from neuronscope.engine.logs import LogCapture
from neuronscope.engine.wrap import Installation
from neuronscope.exceptions import AdapterNotFoundError
from neuronscope.exporters import Exporter, ExporterContext
from neuronscope.exporters.registry import make_exporters
from neuronscope.instrumentation import ClientIntegration, registry
from neuronscope.settings import OverheadAction, Settings

if TYPE_CHECKING:
    from neuronscope.diagnosis.watch import Watch

_lock = native.new_lock()
_installations: dict[str, Installation] = {}
_current: Platform | None = None
_logs: LogCapture | None = None


class Platform:
    """Starts observation in this process; a later one replaces it.

    Args:
        max_overhead_pct: budget of observation, in per cent of the observed time.
        overhead_action: what happens beyond it: ``"warn"``, ``"reduce"`` or ``"abort"``.
        exporters: exporters of your own, beside those that the settings configure.
        redactor: ``(attribute key, text) -> text``, applied to content before anything is encoded; where it
            raises or takes longer than 50 ms the text becomes its hash and length.
        settings: any other `Settings` field.

    Raises:
        ConfigError: a setting cannot be used.
    """

    def __init__(
        self,
        *,
        max_overhead_pct: float | None = None,
        overhead_action: OverheadAction | None = None,
        exporters: Sequence[Exporter] = (),
        redactor: Redactor | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings.load(
            max_overhead_pct=max_overhead_pct, overhead_action=overhead_action, **settings
        )
        self._exporters = tuple(exporters)
        self._watch: Watch | None = None
        global _current  # noqa: PLW0603 - the process has one platform
        with _lock:
            ENGINE.start(self.settings, self._make_exporters, redactor)
            ENGINE.watch_model = _watch_model
            ENGINE.prepare_models = _prepare_models
            _stop_watching()
            _current = self
            _release_logs()
            _capture_logs()
        if self.settings.baseline or self.settings.embedder_probes in {"local", "all"}:
            _ = self.watch
        if self.settings.nsz:
            dump_on_signal()

    def _make_exporters(self, context: ExporterContext) -> Sequence[Exporter]:
        return [*make_exporters(context, ENGINE.count_exported), *self._exporters]

    @property
    def watch(self) -> Watch:
        """The diagnosis of retrieval: canaries, drift, embedder fingerprints.

        Raises:
            BaselineError: the baseline that the settings name cannot be read.
        """
        from neuronscope.diagnosis.watch import Watch

        with _lock:
            if self._watch is None:
                self._watch = Watch(self.settings, ENGINE)
            return self._watch

    @property
    def overhead_pct(self) -> float:
        """Accounted cost of observation so far, in per cent of the observed time."""
        return ENGINE.budget.overhead_pct

    def instrument(self, *names: str) -> None:
        """Same as `ns.instrument`."""
        instrument(*names)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Same as `ns.flush`."""
        return flush(timeout_s)

    def shutdown(self) -> None:
        """Stop observing, uninstrument everything, and flush within the exit timeout."""
        global _current  # noqa: PLW0603 - the process has one platform
        with _lock:
            uninstrument()
            _stop_watching()
            ENGINE.stop(self.settings.exit_timeout_s)
            leave_signal()
            if _current is self:
                _current = None

    def __enter__(self) -> Platform:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def current() -> Platform:
    """The process's platform; started from the environment if there is none yet."""
    with _lock:
        if _current is None or not ENGINE.running:
            Platform()
        assert _current is not None
        return _current


def instrument(*names: str) -> None:
    """Observe every object of these libraries; without names, those that `Settings.instrument` lists.

    Families of adapters have names, too: ``llm_api``, ``vector_store``, ``hf_transformers``.
    Libraries that are not imported yet are instrumented when they are.

    Raises:
        AdapterNotFoundError: no adapter has that name.
    """
    settings = current().settings
    if settings.propagate_threads:
        _install(EXECUTORS)
    if not names:
        _capture_logs()
        names = settings.instrument
    if "all" not in names:
        for name in registry.members(names):
            _observe_everything(name)
        return
    disabled = registry.members(settings.disable)
    for name in registry.client_names():
        entry = registry.CLIENTS.get(name)
        if name not in disabled and not (entry is not None and entry.on_request):
            # One adapter that fails must not cost the others.
            GUARD.call(f"instrument.{name}", _observe_everything, name)


def _observe_everything(name: str) -> None:
    installation(name).everything = True


def uninstrument(*names: str) -> None:
    """Restore the functions of these libraries; without names, of all, and the service's logging."""
    with _lock:
        if not names:
            _release_logs()
        for name in registry.members(names) or tuple(_installations):
            installed = _installations.pop(name, None)
            if installed is not None:
                installed.uninstall()


def _capture_logs() -> None:
    """Trace ids on the service's log records, and their export, if the settings ask for it."""
    global _logs  # noqa: PLW0603 - the process has one `logging`
    settings = ENGINE.settings
    with _lock:
        if _logs is None and settings.enabled and settings.logs != "off":
            service_name = str(ENGINE.resource().get("service.name", ""))
            _logs = LogCapture(settings, service_name, ENGINE.take_log)
            _logs.install()


def _release_logs() -> None:
    global _logs
    with _lock:
        captured, _logs = _logs, None
        if captured is not None:
            captured.uninstall()


def installation(name: str) -> Installation:
    """The installation of an adapter, made when first asked for."""
    with _lock:
        return _installations.get(name) or _install(registry.client(name))


def _install(integration: ClientIntegration) -> Installation:
    with _lock:
        installed = _installations.get(integration.name)
        if installed is None:
            installed = _installations[integration.name] = Installation(integration)
            installed.install()
        return installed


def installations() -> dict[str, Installation]:
    """What is installed, by adapter name."""
    with _lock:
        return dict(_installations)


def instrument_object(name: str, obj: Any) -> Any:
    """Observe one object of a library; returns it, unchanged."""
    current()
    installation(name).include(obj)
    return obj


def flush(timeout_s: float = 10.0) -> bool:
    """Export everything recorded so far; True if it all went within `timeout_s` seconds."""
    return ENGINE.flush(timeout_s)


def forget() -> None:
    """Forget the process's platform (tests)."""
    global _current  # noqa: PLW0603
    with _lock:
        _stop_watching()
        _current = None


def _stop_watching() -> None:
    if _current is not None and _current._watch is not None:  # pyright: ignore[reportPrivateUsage] # same module
        _current._watch.stop()  # pyright: ignore[reportPrivateUsage] # same module


def _watch_model(model: Any, span: Any) -> Any:
    from neuronscope.callwatch import watch_call

    try:
        return watch_call(model, span)
    except AdapterNotFoundError:
        return None


def _prepare_models() -> None:
    importlib.import_module("neuronscope.callwatch")
    registry.prepare_backends()


def _at_exit() -> None:
    GUARD.call("platform.exit", _stop_watching)
    GUARD.call("platform.exit", ENGINE.stop, ENGINE.settings.exit_timeout_s)


def _stop_with_multiprocessing(util: ModuleType) -> None:
    """Its forked children end by `os._exit`, so `atexit` is not called; its own finalizers are."""
    from multiprocessing import parent_process

    def in_child(_: object = None) -> None:
        # Late among the finalizers: what the child's own clean-up does is still recorded.
        util.Finalize(None, _at_exit, exitpriority=-100)

    util.register_after_fork(ENGINE, in_child)
    if parent_process() is not None:  # we are imported in a child that is under way
        in_child()


atexit.register(_at_exit)
os.register_at_fork(
    before=partial(GUARD.call, "platform.fork", ENGINE.before_fork),
    after_in_parent=partial(GUARD.call, "platform.fork", ENGINE.after_fork),
    after_in_child=partial(GUARD.call, "platform.fork", ENGINE.restart_in_child),
)
after_import("multiprocessing.util", _stop_with_multiprocessing)
