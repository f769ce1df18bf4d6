"""Every exception NeuronScope raises on purpose.

::

    NeuronscopeError
    ├── ConfigError (ValueError)              a setting that cannot mean anything
    ├── AdapterNotFoundError (LookupError)    no adapter for an object or a name
    ├── MissingDependencyError (ImportError)  an extra is not installed
    ├── LayerNotFoundError (LookupError)      a layer id or pattern matches nothing
    ├── UnsupportedTensorError (TypeError)    a tensor that cannot be summarised or copied
    ├── UnsupportedProbeError (TypeError)     a probe that the model's runtime cannot serve
    ├── BaselineError (ValueError)            a file that is no baseline of retrieval
    ├── NszError (ValueError)                 a `.nsz` file that is not one, or is damaged
    │   └── NszLimitError                     a file that asks for more than the reader allows
    └── OverheadBudgetExceeded (RuntimeError) raised at a scope's exit, never inside a call

They are raised at set-up, by explicit scopes and by tools.  Inside a service's own
call nothing of ours is ever raised (see `neuronscope.engine.guard`).
"""

from __future__ import annotations


class NeuronscopeError(Exception):
    """The root: `except ns.NeuronscopeError` catches everything of ours."""


class ConfigError(NeuronscopeError, ValueError):
    """A setting has a value that cannot be used; the message says what would be."""


class AdapterNotFoundError(NeuronscopeError, LookupError):
    """No adapter matches the object, or none has the name asked for."""


class MissingDependencyError(NeuronscopeError, ImportError):
    """A part of NeuronScope needs a package that is not installed."""

    def __init__(self, what: str, distribution: str, extra: str | None = None) -> None:
        hint = f'pip install "neuronscope[{extra}]"' if extra else f"pip install {distribution}"
        super().__init__(f"{what} needs `{distribution}`, which is not installed. Run: {hint}")
        self.distribution = distribution


class LayerNotFoundError(NeuronscopeError, LookupError):
    """A layer id or pattern matches no layer of the model."""


class UnsupportedTensorError(NeuronscopeError, TypeError):
    """A tensor whose kind (meta, sparse, quantised, …) has no host values to summarise or copy.

    Whoever asked counts a skip by `reason` and goes on.

    Attributes:
        reason: why, from a small set of words fit for a label (``"meta"``, ``"layout:sparse_coo"``).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"this tensor cannot be read: {reason}")
        self.reason = reason


class UnsupportedProbeError(NeuronscopeError, TypeError):
    """A probe looks at something that the model's runtime cannot show; the message says what it shows."""


class ModelFileError(NeuronscopeError, ValueError):
    """A file or a message is no model of the format it should be, or is damaged."""


class BaselineError(NeuronscopeError, ValueError):
    """A file is no baseline of retrieval, is damaged, or is of a later version."""


class NszError(NeuronscopeError, ValueError):
    """The file is not `.nsz`, or the part asked for is damaged."""


class NszLimitError(NszError):
    """The file asks for more memory or more records than the reader allows."""


class OverheadBudgetExceeded(NeuronscopeError, RuntimeError):
    """Observation cost more than its budget allows; the scope's data is kept.

    Raised at the scope's exit only.

    Attributes:
        overhead_pct: what observation cost, in per cent of the observed time.
        budget_pct: what it was allowed to cost.
        probe: the probe or site that cost most.
    """

    def __init__(self, overhead_pct: float, budget_pct: float, probe: str) -> None:
        super().__init__(
            f"observation cost {overhead_pct:.1f} % of the observed time; the budget is "
            f"{budget_pct:g} %. Most of it: {probe}. The scope's data is kept. Watch fewer layers, "
            "ask for summaries instead of full tensors, or raise max_overhead_pct."
        )
        self.overhead_pct = overhead_pct
        self.budget_pct = budget_pct
        self.probe = probe
