"""Probes: what to observe at a layer.

A probe of your own is a subclass with `Probe.measure`: what it returns is kept in the record's
`attributes`, beside the summary (and the tensor, if the fidelity asks for it and the budget affords it).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from neuronscope.signals.records import Attributes, Fidelity

if TYPE_CHECKING:
    from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

__all__ = ["AttentionMaps", "LayerActivations", "LayerGradients", "NumericHealth", "Probe"]

OUTPUT: Final = "output"
GRADIENT: Final = "gradient"
ATTENTION: Final = "attention"

# The largest finite value of floating types, by their safetensors names.
LARGEST: Final = {
    "F64": 1.7976931348623157e308,
    "F32": 3.4028234663852886e38,
    "BF16": 3.3895313892515355e38,
    "F16": 65504.0,
    "F8_E5M2": 57344.0,
    "F8_E4M3": 448.0,
    "F8_E5M2FNUZ": 57344.0,
    "F8_E4M3FNUZ": 240.0,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe takes; subclass it for one of your own.

    Attributes:
        role: which tensor of the layer it looks at: ``output``, ``gradient`` (of the output) or
            ``attention``.
        critical: kept by the governor when non-critical probes are switched off.
        fidelity: how much of it is kept, at most.
        details: keep a histogram of magnitudes and a sketch of 64 numbers, too (several passes more).
    """

    role: ClassVar[str] = OUTPUT
    critical: ClassVar[bool] = False
    fidelity: Fidelity = Fidelity.FULL
    details: bool = False

    @property
    def reads_values(self) -> bool:
        """Does it look at the values themselves, whatever is kept?"""
        return self.details or type(self).measure is not Probe.measure

    def measure(self, layer_id: str, snapshot: TensorSnapshot, summary: TensorSummary) -> Attributes:
        """What else to record of one run; called in the model's thread, so be quick.

        An exception is counted and logged, and the run recorded without.  For a tensor on an accelerator it
        runs later, in the worker, with a snapshot that has no values any more.
        """
        return {}


@dataclass(frozen=True, slots=True)
class LayerActivations(Probe):
    """A layer's output: in full as far as the budget allows, else its summary."""


@dataclass(frozen=True, slots=True)
class LayerGradients(Probe):
    """The gradient of the loss by a layer's output, recorded during the backward pass."""

    role: ClassVar[str] = GRADIENT
    fidelity: Fidelity = Fidelity.SUMMARY


@dataclass(frozen=True, slots=True)
class AttentionMaps(Probe):
    """Attention weights of a layer, as (batch, head, query, key).

    Taken where the model computes them (``attn_implementation="eager"``); where a fused kernel never shows
    them they are computed again from queries and keys, in float32, for the heads asked for.
    `attributes` say which: ``source``.

    Attributes:
        heads: numbers of the heads to keep; all by default.
    """

    role: ClassVar[str] = ATTENTION
    heads: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class NumericHealth(Probe):
    """Is a layer's output numerically sound?

    `attributes`: ``headroom`` (largest modulus, as a share of the type's largest value), ``units`` (size of
    the last dimension) and ``dead_units`` (of them, how many were zero in every row of every run so far).
    Non-finite values are counted in the summary.
    """

    critical: ClassVar[bool] = True
    fidelity: Fidelity = Fidelity.SUMMARY
    _active: dict[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    def measure(self, layer_id: str, snapshot: TensorSnapshot, summary: TensorSummary) -> Attributes:
        """Headroom and dead units."""
        found: dict[str, float | int] = {}
        largest = LARGEST.get(snapshot.dtype)
        if largest is not None and summary.abs_max == summary.abs_max:
            found["headroom"] = summary.abs_max / largest
        if snapshot.shape and summary.count:
            found["units"] = snapshot.shape[-1]
            with suppress(ValueError):  # an accelerator's values are gone when its summary is read
                found["dead_units"] = self._dead(layer_id, snapshot, summary)
        return found

    def _dead(self, layer_id: str, snapshot: TensorSnapshot, summary: TensorSummary) -> int:
        units = snapshot.shape[-1]
        rows = summary.count // units
        seen = self._active.get(layer_id)
        if seen is not None and seen.size == units and seen.all():
            return 0
        if summary.zero_count < rows:  # not one unit can have been zero throughout
            import numpy as np

            self._active[layer_id] = np.ones(units, np.bool_)
            return 0
        active = snapshot.active_units()
        self._active[layer_id] = active if seen is None or seen.size != units else active | seen
        return units - int(self._active[layer_id].sum())


def __dir__() -> list[str]:
    return sorted(__all__)
