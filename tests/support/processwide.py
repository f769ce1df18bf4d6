"""What the tests of one process share, and none may leave changed: else a later one fails, in another folder.

What the first import of a library brings along may stay: modules, and what compiled code is bound to.
"""

# Where the state is that nobody but a test has to see.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from neuronscope import compiled
from neuronscope.engine import ENGINE, ids
from neuronscope.engine.wrap import Installation
from neuronscope.governor.allowance import UNSETTLED
from neuronscope.instrumentation import registry
from neuronscope.recording import CURRENT
from neuronscope.summaries import kernel

# Values by name, in groups.
Process = dict[str, Mapping[str, Any]]

BOUND: Final = "given to compiled code"
LOGGERS: Final = "our loggers"
MODULES: Final = "our modules"
_MAY_GROW: Final = frozenset({BOUND, LOGGERS, MODULES, "jax"})  # as more of it is imported
# By which we, clients of providers and programs that tests start go; libraries set others as they come.
_READ: Final = (
    "NEURONSCOPE_", "OTEL_", "OPENAI_", "AZURE_", "ANTHROPIC_", "AWS_", "GOOGLE_", "HF_",
    "PYTHON", "PATH", "HOME", "TMPDIR",
)  # fmt: skip
_bound: Final[dict[str, tuple[Any, ...]]] = {}
# But for the alarm, by which pytest-timeout ends a test.
_SIGNALS: Final = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}
_GLOBAL_HOOKS: Final = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
    "_global_backward_pre_hooks", "_global_buffer_registration_hooks", "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)  # fmt: skip


def watch_bindings() -> None:
    """Note what compiled functions bind from now on; to be called before anybody looks these up."""
    for name in [name for name in dir(compiled.MODULE) if name.startswith("bind_")]:
        setattr(compiled.MODULE, name, _noting(name, compiled.find(name)))


def _noting(name: str, bind: Any) -> Callable[..., None]:
    def noted(*given: Any) -> None:
        _bound[name] = given
        bind(*given)

    return noted


def look() -> Process:
    """How the process is now; in a tenth of a millisecond."""
    return {
        MODULES: {name: sys.modules.get(name) for name in _our_modules(len(sys.modules))},
        "environment": {name: value for name, value in os.environ.items() if name.startswith(_READ)},
        "handlers of signals": {str(number): signal.getsignal(number) for number in _SIGNALS},
        "interpreter": _interpreter(),
        "logging": _logging(),
        LOGGERS: _loggers(),
        "NeuronScope": _ours(),
        BOUND: _bound.copy(),
        **({"torch": _torch()} if "torch" in sys.modules else {}),
        **({"jax": dict(sys.modules["jax"].config.values)} if "jax" in sys.modules else {}),
    }


def changes(before: Process) -> list[str]:
    """What has changed since, in words."""
    now = look()
    told: list[str] = []
    for group, was in before.items():
        values = now[group]
        if was.items() <= values.items() and (group in _MAY_GROW or len(was) == len(values)):
            continue
        told += [
            f"{group}: {name} was {was.get(name)!r}, is {values.get(name)!r}"
            for name in (was if group in _MAY_GROW else {**was, **values})
            if was.get(name) != values.get(name)
        ]
    return told


def still_wrapped(installations: Mapping[str, Installation]) -> list[str]:
    """Which of their functions are ours even now, after these adapters were uninstalled."""
    targets = {target for each in installations.values() for target in each.installed if ":" in target}
    return sorted(filter(_is_wrapped, targets))


def _is_wrapped(target: str) -> bool:
    module, _, path = target.partition(":")
    *outer, name = path.split(".")
    owner = cast(Any, sys.modules.get(module))
    for part in outer:
        owner = cast(Any, getattr(owner, part, None))
    held = cast("Mapping[str, Any]", getattr(owner, "__dict__", {}))
    return getattr(held.get(name), "__neuronscope__", None) is not None


@functools.lru_cache(maxsize=1)
def _our_modules(_: int) -> list[str]:
    """Their names, looked up where the number of all modules has changed."""
    return [name for name in sys.modules if name.startswith("neuronscope")]


def _interpreter() -> dict[str, Any]:
    return {
        "working directory": os.getcwd(),
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "trace function": sys.gettrace(),
        "profile function": sys.getprofile(),
        "collector": (gc.isenabled(), gc.get_threshold()),
    }


def _logging() -> dict[str, Any]:
    root = logging.getLogger()
    return {
        "level": root.level,
        "disabled up to": root.manager.disable,
        "handlers": list(root.handlers),
        "factory of records": logging.getLogRecordFactory(),
        "delivery": logging.Logger.callHandlers,
    }


def _loggers() -> dict[str, Any]:
    known = logging.root.manager.loggerDict
    return {
        name: (logger.level, logger.disabled, logger.propagate, tuple(logger.handlers))
        for name in _our_loggers(len(known))
        if isinstance(logger := known[name], logging.Logger)
    }


@functools.lru_cache(maxsize=1)
def _our_loggers(_: int) -> list[str]:
    """The same of all loggers."""
    return [name for name in logging.root.manager.loggerDict if name.startswith("neuronscope")]


def _ours() -> dict[str, Any]:
    found, _ = kernel.load()
    return {
        "registered clients": registry._registered_clients.copy(),
        "registered backends": registry._registered_backends.copy(),
        "source of ids": ids._source,
        "observer of records": ENGINE.on_record,
        "observer of embedders": ENGINE.on_embedder,
        "notes that wait": UNSETTLED.waiting,
        "recording scope": CURRENT.get(),
        "compiled module": compiled.MODULE,
        "variant of the kernel": found.variant if found is not None else "",
    }


def _torch() -> dict[str, Any]:
    import torch

    modules: Any = torch.nn.modules.module
    ours = sys.modules.get("neuronscope_instrumentation.torch.slot")
    return {
        "default type": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "calls of modules": (torch.nn.Module.__call__, torch.nn.Module._call_impl),
        "process group": torch.distributed.is_available() and torch.distributed.is_initialized(),
        "global hooks": [len(getattr(modules, name)) for name in _GLOBAL_HOOKS],
        "slots that hide": len(ours.HIDDEN) if ours is not None else 0,
    }
