"""What public methods the libraries have that a model may work for, and what we say of each.

A method is *suspected* when it takes what models take (a model, messages, a prompt, a query …) or opens a
connection; every suspect must be covered by its adapter, declared a gap there, or be known bookkeeping.  So a
new release of a library that brings a new API makes a test of ours fail, by name, and `neuronscope doctor`
tell.
"""

from __future__ import annotations

from typing import Final

from neuronscope.doctor.surfaces.clients import CLIENTS
from neuronscope.doctor.surfaces.layers import LAYERS
from neuronscope.doctor.surfaces.surface import Surface

__all__ = ["SURFACES", "Surface"]

SURFACES: Final = (*CLIENTS, *LAYERS)
