"""Pipelines of transformers: a call of theirs is text in, an answer out, around one model."""

from __future__ import annotations

from typing import Any

_PIPELINE = ("transformers.pipelines.base", "Pipeline")


def is_pipeline(thing: object) -> bool:
    """Is it one, whatever its task?  Imports nothing."""
    return any((kind.__module__, kind.__qualname__) == _PIPELINE for kind in type(thing).__mro__)


def reader_of(pipeline: Any) -> Any:
    """What makes a pipeline's texts into tokens; None: it takes no text."""
    return getattr(pipeline, "tokenizer", None)
