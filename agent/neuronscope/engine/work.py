"""Work that is no call of a function: its span begins in one place and ends in another, for adapters' seams.

Adapters import nothing from OpenTelemetry; what they need of it is here.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.span import LightSpan


class Work:
    """A piece of work under way, with an INTERNAL span.  Begin and end it in any thread, end it once."""

    __slots__ = ("_context", "_engine", "_span")

    def __init__(self, engine: Engine, span: LightSpan, context: otel_context.Context) -> None:
        self._engine = engine
        self._span = span
        self._context = context

    @classmethod
    def begin(
        cls,
        engine: Engine,
        name: str,
        library: str,
        attributes: Mapping[str, Any],
        *,
        nested: bool = False,
        apart: bool = False,
    ) -> Work | None:
        """Begin a piece of work; None if it is not to be observed.

        Args:
            nested: a span of the same library may be open around it.
            apart: it has a trace of its own, whatever span is current.
        """
        within = otel_context.Context() if apart else None
        opened = engine.open_span(
            name, SpanKind.INTERNAL, library, dict(attributes), nested=nested, within=within
        )
        return None if opened is None else cls(engine, *opened)

    @contextmanager
    def current(self) -> Generator[None]:
        """Within: its span is the current one."""
        token = otel_context.attach(self._context)
        try:
            yield
        finally:
            otel_context.detach(token)

    def tell(self, key: str, value: Any) -> None:
        """Add an attribute."""
        self._span.set_attribute(key, value)

    def fail(self, error_type: str) -> None:
        """It has failed: by the type of the error, never by its text."""
        self._span.set_attribute(names.ERROR_TYPE, error_type)
        self._span.set_status(StatusCode.ERROR)

    def link(self, other: Work) -> None:
        """Add a link to another piece of work."""
        self._span.add_link(other._span.get_span_context())

    def end(self) -> None:
        """It is over."""
        self._engine.finish(self._span)
