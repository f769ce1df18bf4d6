"""What a pattern names is decided in one place, for all runtimes."""

from __future__ import annotations

import pytest

from neuronscope.exceptions import LayerNotFoundError
from neuronscope_instrumentation.common import layer_paths

PATHS = ("embed", "layers.0", "layers.0.mlp", "layers.1.mlp", "head")


def named(pattern: str) -> list[str]:
    """What the pattern names of the paths."""
    return layer_paths.match("the model", PATHS, pattern)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("head", ["head"]),
        ("", [""]),
        ("layers.*", ["layers.0"]),
        ("layers.*.mlp", ["layers.0.mlp", "layers.1.mlp"]),
        ("**.mlp", ["layers.0.mlp", "layers.1.mlp"]),
        ("layers.**", ["layers.0", "layers.0.mlp", "layers.1.mlp"]),
        ("**", list(PATHS)),
    ],
)
def test_a_pattern_names_paths_in_their_order(pattern: str, found: list[str]) -> None:
    """One star stays within a part of a path, two stars cross parts; nothing at all is the model."""
    assert named(pattern) == found


def test_what_a_regular_expression_would_read_is_read_as_it_stands() -> None:
    """A dot is a dot, and brackets are brackets."""
    assert not layer_paths.names("layers.0", "layersX0")
    assert not layer_paths.names("h[0]*", "h0")
    assert layer_paths.names("h[0]*", "h[0]x")


def test_a_name_that_nothing_has_is_answered_with_close_ones() -> None:
    """The message leads on, and an empty model says so."""
    with pytest.raises(LayerNotFoundError, match=r"the model has no layer 'layer\.0'.*layers\.0"):
        named("layer.0")
    with pytest.raises(LayerNotFoundError, match="it has no layers inside"):
        layer_paths.match("the model", (), "x")


def test_patterns_of_a_long_life_take_no_memory() -> None:
    """What was made of patterns is kept for the latest of them only."""
    for number in range(2_000):
        layer_paths.expression(f"layers.{number}.*")
    info = layer_paths.expression.cache_info()
    assert info.maxsize is not None
    assert info.currsize <= info.maxsize < 2_000
