"""Probes: what to observe at a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from neuronscope.signals.records import Fidelity


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe takes; subclass it for one of your own.

    Attributes:
        role: which tensor of the layer it looks at.
        critical: kept by the governor when non-critical probes are switched off.
    """

    role: ClassVar[str] = "output"
    critical: ClassVar[bool] = False
    fidelity: Fidelity = Fidelity.FULL


@dataclass(frozen=True, slots=True)
class LayerActivations(Probe):
    """A layer's output: in full as far as the budget allows, else its summary."""
