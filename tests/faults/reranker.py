"""The compared service's reranker: Cohere's wire format on a loopback socket, ranking by real vectors."""

from __future__ import annotations

import json

import numpy as np
from tests.faults.texts import QUERY_PREFIX, Vectors

import neuronscope as ns
from neuronscope.testing.fake_cohere import rerank
from neuronscope.testing.fake_provider import Received, Reply


class Reranker(ns.testing.FakeCohere):
    """Ranks by one half of the long vectors; its other version by the other half."""

    def __init__(self, vectors: Vectors) -> None:
        super().__init__()
        self._vectors = vectors

    def unscripted(self, request: Received) -> Reply:
        """The documents' positions, best first."""
        asked = json.loads(request.body)
        half = slice(None, 192) if str(asked["model"]).endswith("v3.5") else slice(192, None)
        query = self._vectors.of("minilm", QUERY_PREFIX + asked["query"])[half]
        scores = [float(np.dot(query, self._vectors.of("minilm", text)[half])) for text in asked["documents"]]
        order = sorted(range(len(scores)), key=lambda at: -scores[at])
        return rerank([(1 + scores[at]) / 2 for at in order], order)
