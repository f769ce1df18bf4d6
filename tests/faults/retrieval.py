"""Faults of retrieval."""

from __future__ import annotations

import copy
from typing import Any

from qdrant_client.models import PointIdsList
from tests.faults.laboratory import Fault
from tests.faults.service import COLLECTION, Embedder, Service


def swap_embedder(service: Service) -> None:
    """Another model of the same dimension: queries are embedded with half of the layers."""
    model = copy.deepcopy(service.embedder.model)
    encoder: Any = model[0].auto_model.encoder
    encoder.layer = encoder.layer[:3]
    service.embedder = Embedder(model)


def lose_documents(service: Service) -> None:
    """A tenth of the corpus is not in the index."""
    lost = [number for number in service.documents if number % 10 == 3]
    service.store.delete(COLLECTION, points_selector=PointIdsList(points=list(lost)))


def search_less_far(service: Service) -> None:
    """The first stage hands on 14 candidates instead of 50, for ten hits."""
    service.candidates = 14


def break_filter(service: Service) -> None:
    """The filter's field was renamed in the documents, not in the service."""
    service.status_field = "state"


def shift_queries(service: Service) -> None:
    """Users begin to ask mostly about incidents and operations."""
    service.mix = {"incidents": 0.5, "operations": 0.3, "evaluation": 0.1, "prompts": 0.1}


FAULTS = (
    Fault("embedder swapped", "embed", swap_embedder, "embedder_changed"),
    Fault("tenth of the corpus lost", "index", lose_documents, "index_lost"),
    Fault("search parameter degraded", "search", search_less_far, "search_changed"),
    Fault("filter broken", "search", break_filter, "filter_changed"),
    Fault("query mix shifted", "queries", shift_queries, "queries_shifted"),
)
