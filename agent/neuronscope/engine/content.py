"""The content policy: the one place that decides what private data may leave the process.

Every span passes here once, before anything is encoded and whatever library produced it.  Content that
is not allowed is removed; identifiers are hashed when asked; a redactor of the user's sees every text
that is left of content, and if it fails or is slow the value becomes its hash and length (fail closed).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from neuronscope import compiled
from neuronscope.engine.fit import SHORTEST, cut
from neuronscope.engine.guard import GUARD
from neuronscope.engine.keys import key_id, key_of
from neuronscope.engine.propagation import unobserved
from neuronscope.engine.structure import Structure
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.names import ATTRIBUTES, Sensitivity
from neuronscope.signals.records import AttributeValue, LogRecord

Redactor = Callable[[str, str], str]
REDACTOR_BUDGET_S: Final = 0.05
REDACTOR_REST: Final = 20
LOG_BODY: Final = "log.body"  # the key by which the redactor knows messages of the service's log

# Attributes of other libraries that carry content, by exact key or by prefix.
_FOREIGN_KEYS: Final = frozenset(
    {
        "input.value",
        "output.value",
        "traceloop.entity.input",
        "traceloop.entity.output",
        "db.query.text",
        "db.statement",
        "url.query",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.prompt",
        "gen_ai.completion",
    }
)
# Addresses whose query string is content; the rest of them is not.
_URL_KEYS: Final = frozenset({"url.full", "http.url", "http.target"})
_FOREIGN_PREFIXES: Final = (
    "gen_ai.prompt.",
    "gen_ai.completion.",
    "llm.input_messages",
    "llm.output_messages",
    "llm.prompts",
    "embedding.text",
    "retrieval.documents",
    "db.query.parameter",
    "neuronscope.content.",
)


_PUBLIC: Final = Sensitivity.PLAIN
_URL: Final = object()
_ODD: Final = object()  # plain, but not plain text
_INVALID: Final = object()
# What was decided for a key; bounded, since keys of the service's own spans may be made up.
_CLASSES: Final[dict[str, object]] = {}
_MAX_CLASSES: Final = 4096
_MASKED: Final = "[masked sha256:"  # what takes the place of a text whose redactor failed begins so
_NUMBER: Final = 8  # characters that a number in a list is taken for


class ContentPolicy:
    """Applies the content table of the design to attributes.  Used by the worker only.

    Attributes:
        content: may content be read at all?
        content_on_spans: may it be put on spans?
        content_on_events: may it be put on events, and on what else is logged?
        structure: reads what prompts are made of; None: nobody wants it.
        keeps_texts: are texts kept until the worker has read them, if only their structure?
        redactions_failed: how often the user's redactor failed or was too slow.
    """

    def __init__(self, settings: Settings, redactor: Redactor | None = None) -> None:
        self.content_on_spans = settings.content
        self.content_on_events = settings.content_on_events
        self.content = self.content_on_spans or self.content_on_events
        self._hash_identifiers = settings.hash_identifiers
        self.max_length = settings.attribute_max_length
        key = key_of(settings.hash_key)
        self.structure = Structure(on_want=self._keep_texts, key=key) if settings.structure else None
        self.keeps_texts = self.content or settings.structure
        self._redactor = redactor
        self._key = key or os.urandom(16)
        self._hashed_by = f"sha256:{key_id(key)}:" if key else "sha256:"
        self._redactor_rests_until = 0.0
        self.redactions_failed = 0

    def _keep_texts(self, wanted: bool) -> None:
        self.keeps_texts = self.content or wanted

    def apply(self, attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
        """Attributes of a span: plain Python values, without what may not be recorded, within the limits."""
        return self._apply(attributes, self.content_on_spans)

    def apply_to_event(self, attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
        """The same for an event, which has its own switch for content."""
        return self._apply(attributes, self.content_on_events)

    def apply_to_log(self, record: LogRecord) -> LogRecord:
        """A record that the service logged.  Its message goes: that was asked for; the redactor sees it."""
        attributes = self.apply_to_event(record.attributes)
        body = record.body
        if isinstance(body, str):
            truncated: list[str] = []
            body = text_value(body)
            if self._redactor is not None:
                body = self._redact(LOG_BODY, body)
                if _was_masked(body):
                    known = cast("Sequence[str]", attributes.get(names.MASKED, ()))
                    attributes[names.MASKED] = [*known, LOG_BODY]
            body = self._fit(LOG_BODY, body, truncated)
            if truncated:
                known = cast("Sequence[str]", attributes.get(names.TRUNCATED, ()))
                attributes[names.TRUNCATED] = [*known, *truncated]
        return replace(record, body=body, attributes=attributes)

    def _apply(self, attributes: Mapping[str, Any], content: bool) -> dict[str, AttributeValue]:
        truncated: list[str] = []
        failed = self.redactions_failed
        kept = _mask(attributes, _CLASSES, _PUBLIC, self.max_length, self._keep, content, truncated)
        if self.redactions_failed != failed:
            masked = [key for key, value in kept.items() if _was_masked(value)]
            kept[names.MASKED] = [*cast("Sequence[str]", kept.get(names.MASKED, ())), *masked]
        if truncated:
            kept[names.TRUNCATED] = [*cast("Sequence[str]", kept.get(names.TRUNCATED, ())), *truncated]
        return kept

    def _keep(
        self, key: str, value: object, content: bool, kept: dict[str, AttributeValue], truncated: list[str]
    ) -> None:
        kind = _class_of(key)
        if kind is _INVALID or (kind is Sensitivity.CONTENT and not content):
            return
        plain = GUARD.call("content.value", plain_value, value)
        if plain is None:
            return
        if kind is _ODD:
            key = text_value(key)
        if kind is _URL and not content and isinstance(plain, str):
            plain = plain.partition("?")[0]
        if kind is Sensitivity.IDENTIFIER and self._hash_identifiers:
            plain = _map_text(plain, self._hash)
        elif kind is Sensitivity.CONTENT and self._redactor is not None:
            plain = _map_text(plain, partial(self._redact, key))
        kept[key] = self._fit(key, plain, truncated)

    def status_message(self, message: str | None) -> str | None:
        """A status description is an exception's message, hence content."""
        if message is None or not self.content_on_spans:
            return None
        return cast(str, self.apply({names.EXCEPTION_MESSAGE: message}).get(names.EXCEPTION_MESSAGE))

    def _redact(self, key: str, text: str) -> str:
        started = time.perf_counter()
        result = None if started < self._redactor_rests_until else self._ask_redactor(key, text)
        took = time.perf_counter() - started
        if took > REDACTOR_BUDGET_S:
            # It must not hold up everything else: the slower it is, the longer it is not asked.
            self._redactor_rests_until = started + took * REDACTOR_REST
        if not isinstance(result, str) or took > REDACTOR_BUDGET_S:
            self.redactions_failed += 1
            return f"[masked {self._hash(text)} length={len(text)}]"
        return text_value(result)

    def _ask_redactor(self, key: str, text: str) -> object:
        redactor = cast("Callable[[str, str], object]", self._redactor)
        # A redactor may itself be a model behind a client that we observe.
        return unobserved(GUARD.call, "content.redactor", redactor, key, text)

    def _hash(self, text: str) -> str:
        digest = hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256)
        return f"{self._hashed_by}{digest.hexdigest()[:16]}"

    def _fit(self, key: str, value: AttributeValue, truncated: list[str]) -> AttributeValue:
        limit = self.max_length
        if isinstance(value, str):
            if len(value) <= limit:
                return value
            truncated.append(key)
            return cut(value, limit)
        if isinstance(value, list) and (few := _first_items(cast("list[object]", value), limit)) is not value:
            truncated.append(key)
            return cast(AttributeValue, few)
        return value


def _was_masked(value: AttributeValue) -> bool:
    """Is this, or an item of it, what takes the place of a text whose redactor failed?"""
    texts = cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,)
    return any(isinstance(text, str) and text.startswith(_MASKED) for text in texts)


def mask_in_python(
    attributes: Mapping[str, Any],
    classes: Mapping[str, object],
    public: object,
    limit: int,
    keep: Callable[[str, Any, bool, dict[str, AttributeValue], list[str]], None],
    content: bool,
    truncated: list[str],
) -> dict[str, AttributeValue]:
    """Attributes as they may be recorded; most are public, plain and short: they pass with three tests.

    Args:
        classes: what was decided for each key.
        keep: decides on all that do not pass.
    """
    kept: dict[str, AttributeValue] = {}
    known = classes.get
    for key, value in attributes.items():
        if known(key) is public:
            kind = value.__class__
            if kind is str:
                if len(value) <= limit and value.isascii():
                    kept[key] = value
                    continue
            elif kind is int or kind is float or kind is bool or (kind is list and _plain(value, limit)):
                kept[key] = value
                continue
        keep(key, value, content, kept, truncated)
    return kept


_mask: Final = compiled.choose("mask", mask_in_python)


def _plain(items: list[Any], limit: int) -> bool:
    """Is this a list of one text, or none, that may stay as it is?"""
    if not items:
        return True
    first = items[0]
    return len(items) == 1 and first.__class__ is str and len(first) <= limit and first.isascii()


def _class_of(key: str) -> object:
    found = _CLASSES.get(key)
    if found is None:
        found = _classify(key)
        if len(_CLASSES) < _MAX_CLASSES:
            _CLASSES[key] = found
    return found


def _classify(key: object) -> object:
    if not isinstance(key, str):
        return _INVALID
    known = ATTRIBUTES.get(key)
    if known is not None:
        return known.sensitivity
    if key in _FOREIGN_KEYS or key.startswith(_FOREIGN_PREFIXES):
        return Sensitivity.CONTENT
    if key in _URL_KEYS:
        return _URL
    return _PUBLIC if key.isascii() else _ODD


def _first_items(items: list[object], limit: int) -> list[object]:
    """As many items as have room; the list itself if that is all of them, uncut."""
    room = limit
    for position, item in enumerate(items):
        size = len(item) if isinstance(item, str) else _NUMBER
        if size > room:
            cut_item = [cut(item, room)] if isinstance(item, str) and room > SHORTEST else []
            return items[:position] + cut_item
        room -= size
    return items


def _map_text(value: AttributeValue, function: Callable[[str], str]) -> AttributeValue:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Sequence):
        items = cast(Sequence[object], value)
        return cast(AttributeValue, [function(item) if isinstance(item, str) else item for item in items])
    return value


def plain_value(value: object) -> AttributeValue | None:
    """An attribute value as a plain Python one; None for what cannot be one.

    Numpy scalars become Python numbers (SDKs turn them into text or drop them); lone surrogates, which
    no wire format can carry, are replaced.
    """
    if isinstance(value, str):
        return text_value(value)
    if isinstance(value, bool | int | float):
        return value if type(value) in (bool, int, float) else _builtin(value)
    if isinstance(value, list | tuple):
        items = [plain_value(item) for item in cast(Sequence[object], value)]
        return cast(AttributeValue, [item for item in items if item is not None])
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return plain_value(item())
    return None


def text_value(text: str) -> str:
    """The text without lone surrogates."""
    text = str.__str__(text)  # an enum member's value, not its name
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _builtin(value: bool | int | float) -> bool | int | float:
    # Subclasses (enum members, numpy.float64) become the builtin they extend.
    if isinstance(value, bool):
        return bool(value)
    return int(value) if isinstance(value, int) else float(value)
