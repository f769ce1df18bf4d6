"""The data of the HTML page: complete, bounded, and nothing that could end a script."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

import strange
from neuronscope.artifact import Artifact
from neuronscope.cli.view import show
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope.viewer.document import layer_document
from neuronscope.viewer.page import page
from neuronscope.viewer.page_data import SPAN_FIELDS, Limits, embeddable, narrowed, page_data
from neuronscope.viewer.safe import visible
from neuronscope.viewer.words import GROUPS, words

HTML = files("neuronscope.viewer") / "html"


def rows(artifact: Artifact, limits: Limits | None = None) -> list[dict[str, Any]]:
    """The spans of a page by field."""
    data = page_data(artifact, "x", limits)
    found = [dict(zip(SPAN_FIELDS, row, strict=True)) for row in data["spans"]]
    for row in found:
        row["name"] = data["names"][row["name"]]
        row["service"] = data["services"][row["service"]]
        row["keys"] = [data["keys"][key][0] for key in data["shapes"][row["shape"]]]
    return found


def unpacked(grid: dict[str, Any], plane: str, kind: str = "<f4") -> Any:
    """A plane of a grid."""
    return np.frombuffer(base64.b64decode(grid[plane]), kind)


def test_spans_come_depth_first_with_parent_and_process() -> None:
    """A trace's rows are its tree; times are relative to its start."""
    found = rows(strange.incident())
    assert [(row["name"], row["depth"], row["parent"]) for row in found] == [
        ("POST /ask", 0, -1),
        ("retrieval handbook", 1, 0),
        ("chat tiny", 1, 0),
        ("text_completion tiny", 2, 2),
    ]
    assert [row["service"] for row in found] == ["rag-service"] * 3 + ["model-server"]
    assert [row["kind"] for row in found] == ["http", "search", "llm", "model"]
    assert [row["error"] for row in found] == [0, 0, 1, 0]
    assert found[2]["start_us"] == 50_000
    assert found[2]["duration_us"] == 2_900_000
    assert found[2]["extra"]["message"] == "connection lost"
    assert found[1]["values"][found[1]["keys"].index(names.RETRIEVAL_SCORES)] == [0.81, 0.79, -0.12]


def test_circles_orphans_and_twins_are_shown_once_each() -> None:
    """No span disappears because the tree is not one."""
    odd = [
        strange.span(1, trace_id=5, span_id=1, parent_span_id=2),
        strange.span(2, trace_id=5, span_id=2, parent_span_id=1),
        strange.span(3, trace_id=5, span_id=3, parent_span_id=3),
        strange.span(4, trace_id=5, span_id=4, parent_span_id=99),
        strange.span(5, trace_id=5, span_id=4, name="twin"),
    ]
    found = rows(strange.artifact(odd))
    assert sorted(row["name"] for row in found) == ["span 1", "span 2", "span 3", "span 4", "twin"]


def test_a_chain_of_spans_does_not_exhaust_the_stack() -> None:
    """Twenty thousand levels are only rows."""
    chain = [
        strange.span(number, trace_id=5, span_id=number + 1, parent_span_id=number or None)
        for number in range(20_000)
    ]
    assert rows(strange.artifact(chain))[-1]["depth"] == 19_999


def test_the_terminal_shows_what_it_can_of_a_strange_trace() -> None:
    """Deep trees end in a count; control characters and attributes of the wrong type do no harm."""
    chain = [
        strange.span(number, trace_id=5, span_id=number + 1, parent_span_id=number or None)
        for number in range(5000)
    ]
    out = io.StringIO()
    for artifact in (strange.artifact(chain), strange.hostile()):
        show(Console(file=out, width=200), artifact)
    assert "4969 spans below" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "\u202e" not in out.getvalue()


def test_a_grid_keeps_what_is_missing_apart_from_zero() -> None:
    """Cells are those that have a record; steps that the span counted have columns, too."""
    (grid,) = page_data(strange.incident(), "x")["grids"]
    assert grid["width"] == 12  # forward passes, though the last record is of step 9
    assert grid["layers"] == [f"model.layers.{number}" for number in range(6)]
    cells = unpacked(grid, "cells", "<u4")
    assert len(cells) == grid["records"] == 48
    assert not {int(cell) % 12 for cell in cells} & {3, 7, 10, 11}
    assert len(grid["non_finite"]) == 6
    assert grid["non_finite"][0][1:] == [96, 32, 1000]
    assert unpacked(grid, "abs_max")[0] == pytest.approx(1.0)


def test_records_without_statistics_or_with_extreme_ones_are_told_apart() -> None:
    """A tensor alone has no statistics; what float32 cannot hold is its largest value, never Inf."""
    call = strange.span(0)
    tensor = TensorSnapshot.from_numpy(np.ones(3))
    bare = replace(strange.layer(0, 0, call), summary=None, tensor=tensor)
    huge = strange.layer(0, 1, call, summary=strange.summary(1e300))
    (grid,) = page_data(strange.artifact([call], [bare, huge]), "x")["grids"]
    assert unpacked(grid, "state", "u1").tolist() == [2, 1]
    assert np.isnan(unpacked(grid, "mean")[0])
    assert unpacked(grid, "abs_max")[1] == np.finfo(np.float32).max


def test_layers_of_no_span_and_of_no_trace_are_kept() -> None:
    """They have a grid of their own."""
    call = strange.span(0)
    lost = strange.layer(0, 0, None)
    elsewhere = replace(strange.layer(0, 0, call), span_id=77)
    found = page_data(strange.artifact([call], [lost, elsewhere]), "x")["grids"]
    assert [(grid["span"], grid["trace"]) for grid in found] == [(-1, None), (-1, f"{call.trace_id:032x}")]


def test_steps_of_any_size_cost_no_memory() -> None:
    """Steps that are far apart are columns side by side."""
    call = strange.span(0)
    far = [strange.layer(0, step, call) for step in (-5, 0, 2**62)]
    (grid,) = page_data(strange.artifact([call], far), "x")["grids"]
    assert grid["steps"] == [-5, 0, 2**62]
    assert grid["width"] == grid["records"] == 3


def test_what_is_beyond_a_limit_is_left_out_and_told() -> None:
    """The newest traces stay; the notes count what is not there."""
    data = page_data(strange.many_spans(100, 10), "x", Limits(spans=35))
    assert len(data["spans"]) == 30
    assert "70 spans" in data["notes"][0]
    one = page_data(strange.many_spans(100, 100), "x", Limits(spans=35))
    assert len(one["spans"]) == 35
    assert "65 spans" in one["notes"][0]
    layers = page_data(strange.many_layers(10, 10), "x", Limits(layer_records=99))
    assert layers["grids"] == []
    assert "100 layer records" in layers["notes"][0]


def test_long_texts_and_lists_are_shortened_and_told() -> None:
    """A page does not grow with one attribute."""
    attributes = {"long": "x" * 1_000_000, "list": list(range(5000))}
    data = page_data(strange.artifact([strange.span(0, attributes=attributes)]), "x")
    text, numbers = data["spans"][0][SPAN_FIELDS.index("values")]
    assert text.endswith("… (1,000,000 characters)")
    assert len(text) < 21_000
    assert numbers[-1] == "… (5,000 in all)"
    assert "2 long texts or lists" in data["notes"][0]


def test_nothing_in_the_data_can_end_its_element() -> None:
    """The data is ASCII without a character that HTML gives a meaning, and comes back as it was."""
    data = page_data(strange.hostile(), "</script>")
    text = embeddable(data)
    assert text.isascii()
    assert not re.search("[<>&]", text)
    assert json.loads(text) == json.loads(json.dumps(data))


def test_a_page_of_harmful_strings_has_only_our_two_scripts() -> None:
    """Data and program, both closed once; the rest of the page is as for any recording."""
    text = page(strange.hostile())
    assert text.count("<script") == text.count("</script>") == 2
    assert "window.harmed" not in re.sub('<script id="data".*?</script>', "", text).replace(
        "window.harmed = 1&lt;_script&gt;.nsz", ""
    )
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_hidden_characters_are_made_visible() -> None:
    """What would turn or hide text is written as an escape; long text is cut and counted."""
    assert visible("a\u202eb\x1b[0m\u200b\ud800") == "a\\u{202e}b\\u{1b}[0m\\u{200b}\\u{d800}"
    assert visible("tab\tline\nüñ漢🙂") == "tab\tline\nüñ漢🙂"
    assert visible("x" * 10, 4) == "xxxx… (10 characters)"


def test_every_attribute_has_a_heading() -> None:
    """Known ones have a name in people's words, and unknown ones keep their key."""
    assert {words(key)[0] for key in names.ATTRIBUTES} <= set(GROUPS)
    assert words("my.own") == ("More", "my.own", "")
    assert words(names.INPUT_MESSAGES)[0] == "Content"


def test_the_page_asks_for_attributes_that_exist() -> None:
    """Every key that a script of the page names is in the registry of signals."""
    scripts = "".join(file.read_text("utf-8") for file in HTML.iterdir() if file.name.endswith(".js"))
    keys = set(re.findall(r'"((?:neuronscope|gen_ai|db|http|error)\.[a-z_.]*[a-z])"', scripts))
    assert names.RETRIEVAL_IDS in keys
    assert keys - {"neuronscope.theme"} <= set(names.ATTRIBUTES)


def test_a_page_of_some_traces() -> None:
    """--last and --trace leave the others and their layers out."""
    everything = strange.many_spans(30, 10)
    assert {span.trace_id for span in narrowed(everything, 1, None).telemetry.spans} == {0xD0000 + 20}
    one = narrowed(everything, None, f"{0xD0000 + 10:032x}")
    assert len(one.telemetry.spans) == 10


def test_a_layer_is_told_with_its_statistics() -> None:
    """Every statistic, non-finite ones as text; a sketch only if there is one."""
    summary = TensorSummary(4, math.nan, 0.5, 2.0, -1.0, math.inf, math.inf, 1, 1, 1)
    record = LayerRecord("m", "layers.0", 3, 7, (2, 2), "F32", summary=summary)
    told = layer_document(record)
    assert told["summary"]["mean"] == "NaN"
    assert told["summary"]["max"] == "Infinity"
    assert (told["summary"]["count"], told["summary"]["sampled_fraction"]) == (4, 1.0)
    assert "sketch" not in told["summary"]
    with_sketch = replace(record, summary=replace(summary, sketch=(0.5, 0.25)))
    assert layer_document(with_sketch)["summary"]["sketch"] == [0.5, 0.25]
