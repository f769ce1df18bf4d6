"""Which operation a request is, told by method and path, and what to keep of it.

Deployments, versions and whole addresses may stand before a path.  Requests that no model works on have no
route and run untouched: they are listed in ``docs/reference/openai.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Snapshot
from neuronscope_instrumentation.common.fields import fields, mapping, subset, text
from neuronscope_instrumentation.openai.audio import SPEECH, TRANSCRIPTION, keep_speech, keep_transcription
from neuronscope_instrumentation.openai.chat import CHAT, USUAL, keep_chat
from neuronscope_instrumentation.openai.clients import peer_of
from neuronscope_instrumentation.openai.completions import COMPLETIONS, keep_completion
from neuronscope_instrumentation.openai.embeddings import EMBEDDINGS, keep_embeddings
from neuronscope_instrumentation.openai.events import FETCH, RESPONSES
from neuronscope_instrumentation.openai.images import IMAGES, VIDEOS, keep_prompt
from neuronscope_instrumentation.openai.judgements import DECISIONS, MODERATIONS, keep_judged
from neuronscope_instrumentation.openai.keeping import Posted, Route, quick
from neuronscope_instrumentation.openai.peers import peer
from neuronscope_instrumentation.openai.responses import COMPACT, RESPONSE_ID, keep_request
from neuronscope_instrumentation.openai.searches import SEARCH, keep_search, store_of

# Parameters kept of a request's body: scalars, which nobody can change afterwards.
KEPT: Final = frozenset(
    {
        "background",
        "dimensions",
        "encoding_format",
        "frequency_penalty",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "model",
        "n",
        "presence_penalty",
        "previous_response_id",
        "reasoning_effort",
        "seed",
        "service_tier",
        "stream",
        "temperature",
        "top_k",  # not OpenAI's own: vLLM, llama.cpp and others take it as an extra
        "top_p",
    }
)
MAX_POSTED: Final = 256
POSTED: Final[Posted] = {}


def snapshot_in_python(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of a call to the client's `request`; None for endpoints that call no model."""
    options = arguments["options"]
    told: Any = fields(options)  # its attributes, each of which costs pydantic a look at two tables
    url = told["url"]
    known = POSTED.get(url) if told["method"] == "post" else None
    if known is None:
        known = _look_up(told["method"], url)
    route, is_path = known
    if route is None:
        return None
    endpoint, keep, _, named = route
    if keep is None:
        return _fetch(client, options, arguments)
    body = told.get("json_data")
    if body.__class__ is not dict and mapping(body) is None:
        return None
    extra = mapping(told.get("extra_json"))
    if extra:
        body = {**body, **extra}  # as the SDK merges `extra_body`
    kept = subset(body, KEPT)
    keep(kept, body, content)
    target = store_of(url) if named is None else text(kept.get(named))
    return Snapshot(endpoint, target, kept, peer_of(client) if is_path else peer(client, url))


snapshot: Final = quick(snapshot_in_python, POSTED, KEPT)


def _look_up(method: str, url: str) -> tuple[Route | None, bool]:
    """The route of a request, and whether its URL is a path at the client's own server."""
    found = route_of(method, url), "://" not in url
    if method == "post" and len(POSTED) < MAX_POSTED:
        POSTED[url] = found
    return found


def _fetch(client: Any, options: Any, arguments: Mapping[str, Any]) -> Snapshot:
    """A response that is fetched by its id."""
    path = options.url.partition("?")[0].rstrip("/")
    kept: dict[str, Any] = {RESPONSE_ID: path.rpartition("/")[2], "stream": arguments.get("stream")}
    cursor = (mapping(options.params) or {}).get("starting_after")
    if cursor is not None:
        kept["starting_after"] = cursor
    return Snapshot(FETCH, None, kept, peer(client, options.url))


@lru_cache(maxsize=256)
def route_of(method: str, url: str) -> Route | None:
    """The route of a request, None if no model works on it."""
    path = url.partition("?")[0].rstrip("/")
    match method.upper():
        case "POST":
            if store_of(path) is not None:
                return _SEARCH
            return next((route for suffix, route in _POSTS if path.endswith(suffix)), None)
        case "GET" if path.rpartition("/")[0].endswith("/responses"):
            return _FETCH
        case _:
            return None


_FETCH: Final = Route(FETCH, None)
_SEARCH: Final = Route(SEARCH, keep_search, target=None)
_POSTS: Final = (
    ("/chat/completions", Route(CHAT, keep_chat, USUAL)),
    ("/embeddings", Route(EMBEDDINGS, keep_embeddings)),
    ("/responses", Route(RESPONSES, keep_request)),
    ("/responses/compact", Route(COMPACT, keep_request)),
    ("/completions", Route(COMPLETIONS, keep_completion)),  # after those of chats
    ("/images/generations", Route(IMAGES, keep_prompt)),
    ("/images/edits", Route(IMAGES, keep_prompt)),
    ("/images/variations", Route(IMAGES, keep_prompt)),
    ("/audio/speech", Route(SPEECH, keep_speech)),
    ("/audio/transcriptions", Route(TRANSCRIPTION, keep_transcription)),
    ("/audio/translations", Route(TRANSCRIPTION, keep_transcription)),
    ("/moderations", Route(MODERATIONS, keep_judged)),
    ("/decisions", Route(DECISIONS, keep_judged)),
    ("/videos", Route(VIDEOS, keep_prompt)),
    ("/videos/edits", Route(VIDEOS, keep_prompt)),
    ("/videos/extensions", Route(VIDEOS, keep_prompt)),
    ("/remix", Route(VIDEOS, keep_prompt)),
)
