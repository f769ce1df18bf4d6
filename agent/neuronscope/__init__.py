"""NeuronScope: from the alert to the neuron.

An observability agent for services built on models.  ``import neuronscope as ns``:

- `ns.instrument` observes the libraries a service uses; ``neuronscope run`` does it without any code.
- `ns.Scope` records a block; `ns.load` reads a recording back; `ns.compare` says what changed between two.
- `ns.Model.wrap` lists a model's layers and attaches probes.
- `ns.Platform` sets budget, exporters and everything else of the process.

Importing this package imports no framework and no provider SDK; names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuronscope._version import __version__

if TYPE_CHECKING:
    from neuronscope import hooks, interventions, probes, testing
    from neuronscope.artifact import Artifact, load
    from neuronscope.dataset import Dataset
    from neuronscope.diagnosis.baseline import Baseline
    from neuronscope.diagnosis.comparing.face import compare
    from neuronscope.diagnosis.face import (
        retrieval_findings,
        watch_canaries,
        watch_embedder,
        watch_index,
    )
    from neuronscope.dumping import dump
    from neuronscope.engine.context import propagate
    from neuronscope.engine.opening import tenant
    from neuronscope.exceptions import (
        AdapterNotFoundError,
        BaselineError,
        ConfigError,
        LayerNotFoundError,
        MissingDependencyError,
        ModelFileError,
        NeuronscopeError,
        NszError,
        NszLimitError,
        OverheadBudgetExceeded,
        UnsupportedProbeError,
        UnsupportedTensorError,
    )
    from neuronscope.fingerprints import fingerprint
    from neuronscope.instrumentation import BackendAdapter, ClientIntegration, registry
    from neuronscope.model import Model
    from neuronscope.platform import Platform, flush, instrument, uninstrument
    from neuronscope.scope import Scope
    from neuronscope.settings import Settings
    from neuronscope.signals.records import Fidelity, LayerRecord, SpanRecord
    from neuronscope.signals.tensors import LayerSpec, TensorSnapshot, TensorSummary
    from neuronscope.signals.views import LLMSpan, RetrievalSpan

_NAMES = {
    "Artifact": "artifact",
    "load": "artifact",
    "Dataset": "dataset",
    "dump": "dumping",
    "Baseline": "diagnosis.baseline",
    "compare": "diagnosis.comparing.face",
    "retrieval_findings": "diagnosis.face",
    "watch_canaries": "diagnosis.face",
    "watch_embedder": "diagnosis.face",
    "watch_index": "diagnosis.face",
    "AdapterNotFoundError": "exceptions",
    "BaselineError": "exceptions",
    "ConfigError": "exceptions",
    "LayerNotFoundError": "exceptions",
    "MissingDependencyError": "exceptions",
    "ModelFileError": "exceptions",
    "NeuronscopeError": "exceptions",
    "NszError": "exceptions",
    "NszLimitError": "exceptions",
    "OverheadBudgetExceeded": "exceptions",
    "UnsupportedProbeError": "exceptions",
    "UnsupportedTensorError": "exceptions",
    "fingerprint": "fingerprints",
    "BackendAdapter": "instrumentation",
    "ClientIntegration": "instrumentation",
    "Model": "model",
    "Platform": "platform",
    "flush": "platform",
    "instrument": "platform",
    "propagate": "engine.context",
    "tenant": "engine.opening",
    "uninstrument": "platform",
    "Scope": "scope",
    "Settings": "settings",
    "Fidelity": "signals.records",
    "LayerRecord": "signals.records",
    "SpanRecord": "signals.records",
    "LayerSpec": "signals.tensors",
    "TensorSnapshot": "signals.tensors",
    "TensorSummary": "signals.tensors",
    "LLMSpan": "signals.views",
    "RetrievalSpan": "signals.views",
}
_MODULES = {
    "hooks": "hooks",
    "interventions": "interventions",
    "probes": "probes",
    "registry": "instrumentation.registry",
    "testing": "testing",
}

__all__ = [
    "AdapterNotFoundError",
    "Artifact",
    "BackendAdapter",
    "Baseline",
    "BaselineError",
    "ClientIntegration",
    "ConfigError",
    "Dataset",
    "Fidelity",
    "LLMSpan",
    "LayerNotFoundError",
    "LayerRecord",
    "LayerSpec",
    "MissingDependencyError",
    "Model",
    "ModelFileError",
    "NeuronscopeError",
    "NszError",
    "NszLimitError",
    "OverheadBudgetExceeded",
    "Platform",
    "RetrievalSpan",
    "Scope",
    "Settings",
    "SpanRecord",
    "TensorSnapshot",
    "TensorSummary",
    "UnsupportedProbeError",
    "UnsupportedTensorError",
    "__version__",
    "compare",
    "dump",
    "fingerprint",
    "flush",
    "hooks",
    "instrument",
    "interventions",
    "load",
    "probes",
    "propagate",
    "registry",
    "retrieval_findings",
    "tenant",
    "testing",
    "uninstrument",
    "watch_canaries",
    "watch_embedder",
    "watch_index",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(f"neuronscope.{_MODULES[name]}")
    elif name in _NAMES:
        value = getattr(import_module(f"neuronscope.{_NAMES[name]}"), name)
    else:
        raise AttributeError(f"module 'neuronscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(_: Any) -> None:
    """``%load_ext neuronscope`` in a notebook: observe what the settings list, as `instrument` does."""
    from neuronscope.platform import instrument

    instrument()


def unload_ipython_extension(_: Any) -> None:
    """``%unload_ext neuronscope``: every library as it was."""
    from neuronscope.platform import uninstrument

    uninstrument()
