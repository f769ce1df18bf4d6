"""The registry of detectors: small functions over a `Case`, each for one kind of change.

They come in the order of a request's path.  A detector yields what it takes for a cause; whether its tests
are believed is decided over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from neuronscope.diagnosis.comparing.case import Case
from neuronscope.diagnosis.comparing.detectors import (
    around,
    filters,
    inside,
    models,
    prompts,
    queries,
    reranking,
    retrieval,
    steps,
    times,
)
from neuronscope.diagnosis.comparing.result import Cause

Detector: TypeAlias = Callable[[Case], Iterator[Cause]]
DETECTORS: Final[tuple[Detector, ...]] = (
    *queries.DETECTORS,
    *retrieval.DETECTORS,
    *filters.DETECTORS,
    *reranking.DETECTORS,
    *prompts.DETECTORS,
    *models.DETECTORS,
    *inside.DETECTORS,
    *steps.DETECTORS,
    *times.DETECTORS,
    *around.DETECTORS,
)
