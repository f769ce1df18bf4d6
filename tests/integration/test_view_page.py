"""The page of ``view --html`` in a real browser: looked at, searched, driven by keys, attacked."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import neuronscope as ns
import strange
from browser import Browser
from neuronscope.signals import names
from neuronscope.signals.records import LogRecord
from pages import show

pytestmark = pytest.mark.integration

SELECTED = ".waterfall .row[aria-selected=true] b"


def pixel(browser: Browser, row: int, column: int, canvas: str = ".heat canvas") -> list[int]:
    """The colour near the corner of a heat map's cell, read from the canvas."""
    script = f"""(() => {{
      const canvas = document.querySelector({json.dumps(canvas)});
      const [cw, gutter] = [{_cell("width")}, {_cell("gutter")}];
      const x = gutter + {column} * cw + 2, y = 22 + {row} * 18 + 2;
      const copy = document.createElement('canvas');
      const pen = copy.getContext('2d', {{ willReadFrequently: true }});
      pen.drawImage(canvas, -x, -y);
      return [...pen.getImageData(0, 0, 8, 8).data];
    }})()"""
    found: list[int] = browser.run(script)
    return found


def _cell(what: str) -> str:
    """Geometry of the incident's heat map: 12 columns, labels of one digit."""
    wide = "document.querySelector('.heat').clientWidth"
    return "38" if what == "gutter" else f"Math.min(64, Math.max(5, Math.floor(({wide} - 38 - 2) / 12)))"


def test_an_incident_tells_itself(browser: Browser, tmp_path: Path) -> None:
    """What failed is open, with its message; the marks are in the list and in the waterfall."""
    show(browser, strange.incident(), tmp_path)
    assert browser.text(SELECTED) == "chat tiny"
    assert "APIConnectionError" in browser.text(".failure")
    assert "connection lost" in browser.text(".failure")
    assert browser.text("#traces .badges").split("\n") == ["error", "NaN/Inf", "not recorded"]
    assert "rag-service → model-server" in browser.text(".heading")
    tiles = browser.text(".tiles").replace("\n", " ")
    assert "tokens in → out 247 → ?" in tiles
    assert "first chunk after 900 ms" in tiles
    assert browser.text("#agent") == "recording: damaged"


def test_retrieved_documents_have_ids_scores_and_the_margin(browser: Browser, tmp_path: Path) -> None:
    """A row for each hit, a bar as long as its score, negative ones marked."""
    show(browser, strange.incident(), tmp_path)
    browser.click(".waterfall .row:nth-child(2)")
    table = browser.text(".documents").split()
    assert [word for word in table if word in ("leave-policy", "travel", "expenses")] == [
        "leave-policy", "travel", "expenses"
    ]  # fmt: skip
    assert {"0.81", "0.79", "-0.12", "0.02"} <= set(table)
    widths = browser.run(
        "[...document.querySelectorAll('.meter i')].map((bar) => parseFloat(bar.style.width))"
    )
    assert widths == pytest.approx([100, 100 * 0.79 / 0.81, 100 * 0.12 / 0.81])
    assert browser.run("document.querySelectorAll('.meter .negative').length") == 1
    assert "margin\n1.15" in browser.text(".tiles")


def test_missing_and_non_finite_cells_look_like_nothing_else(browser: Browser, tmp_path: Path) -> None:
    """For every metric: red for NaN, hatching for no record, and words for both."""
    show(browser, strange.incident(), tmp_path)
    browser.click(".waterfall .row:nth-child(4)")
    assert "6 cells with NaN or Inf" in browser.text(".health")
    assert "24 of 72 cells not recorded: budget" in browser.text(".health")
    for metric in ("mean", "std", "abs_max", "non_finite"):
        browser.click(f".switch [data-metric={metric}]")
        bad, absent, value = pixel(browser, 3, 6), pixel(browser, 3, 7), pixel(browser, 0, 0)
        assert bad[:3] == [255, 0, 51]
        colours = {tuple(absent[at : at + 3]) for at in range(0, len(absent), 4)}
        assert len(colours) > 4  # hatched
        assert len({tuple(value[at : at + 3]) for at in range(0, len(value), 4)}) == 1
        assert tuple(value[:3]) != (255, 0, 51)
        assert "NaN or Inf" in browser.text(".heat-legend")
        assert "not recorded: budget" in browser.text(".heat-legend")


def test_records_that_were_lost_are_not_put_down_to_the_budget(browser: Browser, tmp_path: Path) -> None:
    """More cells are empty than the call left out: both causes are named, and the difference told."""
    whole = strange.incident()
    part = strange.artifact(whole.telemetry.spans, whole.telemetry.layer_snapshots[:40])
    show(browser, part, tmp_path)
    browser.click(".waterfall .row:nth-child(4)")
    assert "32 of 72 cells not recorded: budget, or not in this recording" in browser.text(".health")
    assert "the call counted 48 records, 40 are here" in browser.text(".health")
    show(browser, strange.artifact(whole.telemetry.spans), tmp_path)
    browser.click(".waterfall .row:nth-child(4)")
    assert "The call counted 48 layer records; they are not in this page." in browser.text(".details")


def test_estimates_of_layers_have_their_error_and_phases(browser: Browser, tmp_path: Path) -> None:
    """Prefill and decoding by themselves, where runs are missing; what is not known is said to be so."""
    told = {
        names.MODEL_NAME: "tiny",
        names.LAYERS_IDS: ["known", "no prefill"],
        names.LAYERS_MEAN: [0.5, 0.25],
        names.LAYERS_STD: [1.0, 1.5],
        names.LAYERS_ABS_MAX: [4.0, 5.0],
        names.LAYERS_MEAN_ERROR: [0.0625, math.inf],
        names.LAYERS_PREFILL_MEAN: [2.0, math.nan],
        names.LAYERS_DECODE_MEAN: [0.375, 0.25],
        names.LAYERS_DECODE_ERROR: [0.125, 0.03125],
    }
    show(browser, strange.artifact([strange.span(1, attributes=told)]), tmp_path)
    cells = browser.run("[...document.querySelectorAll('.details td')].map((cell) => cell.textContent)")
    assert cells[:6] == ["known", "0.5 ± 0.063", "1", "4", "2", "0.375 ± 0.13"]
    assert cells[6:12] == ["no prefill", "0.25 ± unknown", "1.5", "5", "unknown", "0.25 ± 0.031"]


def test_cells_are_read_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    """n goes to what is not finite, arrows on from there, and every cell says what it is."""
    show(browser, strange.incident(), tmp_path)
    browser.click(".waterfall .row:nth-child(4)")
    browser.press("n")
    assert "model.layers.3 · step 6" in browser.text(".readout")
    assert "96 NaN, 32 Inf of 1,000" in browser.text(".readout")
    browser.run("document.querySelector('.heat').focus()")
    browser.press("ArrowRight")
    assert "step 7" in browser.text(".readout")
    assert "not recorded: budget" in browser.text(".readout")
    browser.press("ArrowUp", "ArrowRight")
    readout = browser.text(".readout").replace("\n", " ")
    assert "model.layers.2 · step 8" in readout
    assert "abs-max 7" in readout
    assert "BF16 [1×7×64] · summary" in readout
    browser.press("m")
    assert browser.run("document.querySelector('[data-metric=non_finite]').ariaPressed") == "true"


def test_everything_can_be_done_with_keys(browser: Browser, tmp_path: Path) -> None:
    """j, k, Enter, Esc, /, e and ? move as their help says."""
    show(browser, strange.many_spans(30, 3), tmp_path)
    assert browser.text("#traces .row[aria-selected=true] b") == "span 27"
    browser.press("j", "j", "k")
    assert browser.text("#traces .row[aria-selected=true] b") == "span 24"
    browser.press("Enter", "j")
    assert browser.text(SELECTED) == "span 25"
    browser.press("k", "Enter")
    assert browser.run("document.querySelectorAll('.waterfall .row').length") == 1  # closed
    browser.press("Enter", "Escape", "j")
    assert browser.text("#traces .row[aria-selected=true] b") == "span 21"
    browser.press("/", *'"span 5"')
    assert browser.text("#found") == "1 of 10 traces"
    browser.press("Enter")
    assert browser.text(".heading h2") == "span 3"
    assert browser.text(".row.match b") == "span 5"
    browser.press("?")
    assert "Keys and search" in browser.text("#dialog")
    browser.press("Escape")
    assert browser.run("document.getElementById('dialog').open") is False


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("chat tiny", 1),
        ("qdrant expenses", 1),
        ("collection=handbook", 1),
        ("collection=elsewhere", 0),
        ("margin>1", 1),
        ("margin<1", 0),
        ("ms>2000", 1),
        ("ms>4000", 0),
        ("is:error is:nonfinite", 1),
        ("is:empty", 0),
        ('"connection lost"', 1),
        ("c0ffee", 1),
        ("service=model-server", 1),
        ("((", 0),
    ],
)
def test_search(browser: Browser, tmp_path: Path, query: str, found: int) -> None:
    """Words, attributes, numbers, flags, ids and messages."""
    show(browser, strange.incident(), tmp_path)
    browser.run(
        f"(() => {{ const box = document.getElementById('search'); box.value = {json.dumps(query)};"
        " box.dispatchEvent(new Event('input')); })()"
    )
    assert browser.run("document.querySelectorAll('#traces .row').length") == found


def test_filters_choose_traces(browser: Browser, tmp_path: Path) -> None:
    """A filter that would find nothing cannot be pressed."""
    incident, usual = strange.incident(), strange.many_spans(9, 3)
    spans = [*incident.telemetry.spans, *usual.telemetry.spans]
    show(browser, strange.artifact(spans, incident.telemetry.layer_snapshots), tmp_path)
    browser.click(".chip.error")
    assert browser.text("#found") == "1 of 4 traces"
    assert browser.run("document.querySelector('.chip.empty').disabled") is True


def test_harmful_strings_are_only_text(browser: Browser, tmp_path: Path) -> None:
    """Every view of every trace is opened; nothing runs, nothing loads, all is legible."""
    show(browser, strange.hostile(), tmp_path)
    seen = ""
    for number in range(len(strange.HOSTILE)):
        browser.click(f"#traces .row:nth-child({number + 1})")
        browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        seen += browser.text("main")
    browser.click("#agent")
    seen += browser.text("#dialog")
    assert browser.run("window.harmed ?? null") is None
    assert browser.run("document.querySelectorAll('main img, main svg, main script, main a').length") == 0
    assert strange.HOSTILE[0] in seen
    assert "right \\u{202e}to left\\u{202c}" in seen
    assert not any(character in seen for character in "\u202e\u2066\x1b\x00\x07")


def test_log_records_are_at_their_span(browser: Browser, tmp_path: Path) -> None:
    """What was logged on a line; an event's content as a list whose long texts open."""
    question = "how long may a text be? " * 50
    content: Any = ({"role": "user", "parts": ({"type": "text", "content": question},)},)
    call = strange.span(1)
    logs = [
        LogRecord(
            call.start_unix_ns + 5, 0, 9, "INFO", None, {"gen_ai.input.messages": content}, call.trace_id,
            call.span_id, event_name="gen_ai.client.inference.operation.details",
        ),
        LogRecord(call.start_unix_ns + 9, 0, 17, "ERROR", "it broke", {}, call.trace_id, call.span_id),
    ]  # fmt: skip
    show(browser, strange.artifact([call], logs=logs), tmp_path)
    shown = browser.text(".details")
    assert "message=it broke" in shown
    assert "gen_ai.client.inference.operation.details" in shown
    assert question not in shown
    browser.run("document.querySelectorAll('.details details').forEach((part) => { part.open = true; })")
    assert question.strip() in browser.text(".details")


def test_the_page_refuses_script_and_markup_even_from_itself(browser: Browser, tmp_path: Path) -> None:
    """Its policy: no other script, no handler in an attribute, no text as markup, no connection."""
    show(browser, strange.incident(), tmp_path)
    tried = browser.run(
        """(async () => {
          const script = document.createElement('script');
          const attempts = [
            () => { document.body.innerHTML = '<b>x</b>'; },
            () => fetch('data:text/plain,x'),
            () => { script.textContent = 'window.harmed = 9'; },
            () => script.setAttribute('onload', 'x'),
          ];
          const results = [];
          for (const attempt of attempts) {
            try { await attempt(); results.push('done'); } catch { results.push('refused'); }
          }
          return results;
        })()"""
    )
    assert tried == ["refused"] * 4
    assert browser.console  # the browser tells of each
    browser.console.clear()


def test_an_address_leads_to_a_span(browser: Browser, tmp_path: Path) -> None:
    """What is shown is in the address, and the address shows it again."""
    span = strange.incident().telemetry.spans[1]
    fragment = f"#{span.trace_id:032x}-{span.span_id:016x}"
    show(browser, strange.incident(), tmp_path, fragment)
    assert browser.text(SELECTED) == "retrieval handbook"
    browser.press("Enter", "j")
    assert browser.run("location.hash") != fragment


def test_layers_of_no_trace_have_a_place(browser: Browser, tmp_path: Path) -> None:
    """Records that were never attributed can be looked at."""
    records = [strange.layer(number, 0, None) for number in range(3)]
    show(browser, strange.artifact([], records), tmp_path)
    assert browser.text("#traces .row b") == "Layers without a trace"
    assert "3 cells, all finite" in browser.text(".health")


def test_an_empty_recording_says_so(browser: Browser, tmp_path: Path) -> None:
    """No trace is told, not shown as a blank page."""
    show(browser, strange.artifact([]), tmp_path)
    assert browser.text("#found") == "This recording holds no trace."


def test_the_command_writes_a_page(browser: Browser, tmp_path: Path) -> None:
    """From a file on disk to an open page; a page that cannot be written is one clear line."""
    recording, out = tmp_path / "run.nsz", tmp_path / "page.html"
    strange.incident().save(recording)
    assert ns.load(recording).telemetry.spans
    command = [sys.executable, "-m", "neuronscope", "view", str(recording), "--html"]
    done = subprocess.run([*command, str(out)], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 spans and 48 layer records" in done.stdout
    browser.open(out)
    assert browser.text(".file") == "run.nsz"
    failed = subprocess.run(
        [*command, "/dev/null/x"], capture_output=True, text=True, env=os.environ, check=False
    )
    assert failed.returncode == 1
    assert len(failed.stderr.strip().splitlines()) == 1
