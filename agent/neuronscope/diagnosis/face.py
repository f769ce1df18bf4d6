"""What a service says itself about its retrieval: canaries, embedders, stored documents.

::

    ns.watch_canaries("handbook", search, vectors, collection="handbook")
    ns.watch_embedder("minilm", lambda texts: model.encode(texts))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuronscope import platform
from neuronscope.diagnosis.asking import Documents
from neuronscope.diagnosis.canaries import Canaries, Search
from neuronscope.diagnosis.embedders import SAME, TWIN, EmbedTexts
from neuronscope.diagnosis.findings import Finding


def watch_canaries(
    name: str,
    search: Search,
    queries: Sequence[Any],
    *,
    k: int = 10,
    store: str = "",
    collection: str = "",
    fetch: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> None:
    """Search with the same queries every few minutes, and say when they find something else.

    Args:
        name: of the set; a baseline keeps results under it.
        search: ``query -> [(document id, score), …]``, best first, by the service's own search and
            parameters.  Called in a thread of ours, one query at a time.  What it raises is counted.
        queries: fifty or more; vectors, so that the embedder has no part in it.
        k: hits to compare.
        store: ``qdrant`` and so on, with `collection`, as on the spans: whose live drift these explain.
        fetch: ``ids, as text -> those of them that exist``: tells lost documents from documents not found.
    """
    canaries = Canaries(name, search, tuple(queries), k, store, collection, fetch)
    platform.current().watch.add_canaries(canaries)


def watch_embedder(name: str, embed: EmbedTexts, *, quantised: bool = False) -> None:
    """Compare an embedder with its fingerprint in the baseline, now and every few hours.

    Args:
        name: as on its spans (`gen_ai.request.model`), so that retrievals can be marked with it.
        embed: ``texts -> vectors``, as the service embeds queries.  Called in a thread of ours.
        quantised: a quantised twin of the baseline's model is accepted, too.
    """
    platform.current().watch.add_embedder(name, embed, limit=TWIN if quantised else SAME)


def watch_index(name: str, documents: Documents, embed: EmbedTexts) -> None:
    """Embed some stored documents again, now and every few hours, and compare with the stored vectors.

    Args:
        documents: ``() -> [(text, stored vector), …]``: some dozens, chosen as you like.
        embed: as the service embeds documents.
    """
    platform.current().watch.add_index(name, documents, embed)


def retrieval_findings() -> list[Finding]:
    """What is wrong with retrieval at present, as far as it is known."""
    return platform.current().watch.findings()
