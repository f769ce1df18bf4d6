"""The page of ``view --html`` in a real browser: speed, widths, themes, paper, and those who listen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import strange
from browser import Browser
from pages import opened_within, show

pytestmark = pytest.mark.integration

SELECTED = ".waterfall .row[aria-selected=true] b"


@pytest.mark.parametrize("in_trace", [1, 10_000])
def test_ten_thousand_spans_open_in_two_seconds(browser: Browser, tmp_path: Path, in_trace: int) -> None:
    """In one trace or in as many; only rows in sight are in the document, and the last can be reached."""
    opened = opened_within(browser, strange.many_spans(10_000, in_trace), tmp_path, 2000)
    assert opened < 2000, f"ready after {opened} ms"
    assert browser.run("document.querySelectorAll('*').length") < 1500
    started = time.perf_counter()
    browser.press("/", *"id-9999")
    assert browser.text("#found").startswith("1 of")
    assert time.perf_counter() - started < 60
    browser.press("Enter")
    assert browser.text(".heading").startswith("span 9999" if in_trace == 1 else "span 0")


def test_a_hundred_thousand_layer_records_stay_usable(browser: Browser, tmp_path: Path) -> None:
    """A packed page of a few MB; a metric is switched and the far end reached at once."""
    assert opened_within(browser, strange.many_layers(100, 1000), tmp_path, 2000) < 2000
    assert (tmp_path / "page.html").stat().st_size < 6_000_000
    assert "100,000 cells, all finite" in browser.text(".health")
    spent = browser.run(
        """(() => {
          const started = performance.now();
          for (const metric of ['mean', 'std', 'non_finite', 'abs_max'])
            document.querySelector(`[data-metric=${metric}]`).click();
          document.querySelector('.heat').scrollTo(1e6, 1e6);
          return performance.now() - started;
        })()"""
    )
    assert spent < 30_000
    browser.press("n")
    browser.run("document.querySelector('.heat').focus()")
    browser.press("ArrowRight")
    assert "model.layers.0 · step 0" in browser.text(".readout")


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1600, 1000)])
def test_every_width_fits(browser: Browser, tmp_path: Path, width: int, height: int) -> None:
    """Nothing is wider than the screen; on a narrow one the list and the trace take turns."""
    browser.resize(width, height, mobile=width < 800)
    show(browser, strange.incident(), tmp_path)
    for pane in ("list", "trace"):
        assert browser.run("document.documentElement.scrollWidth") <= width
        visible = browser.run("document.getElementById('traces').offsetParent !== null")
        assert visible is (pane == "list" or width > 800)
        browser.press("Enter")
        assert browser.run("document.getElementById('trace').scrollWidth") <= width
    if width < 800:
        browser.click(".back")
        assert browser.run("document.getElementById('traces').offsetParent !== null") is True


def test_dark_and_light(browser: Browser, tmp_path: Path) -> None:
    """As the system says, until the switch says otherwise; text stays legible in both."""
    show(browser, strange.incident(), tmp_path)
    assert _contrast(browser) > 4.5
    browser.prefer("dark")
    dark = browser.run("getComputedStyle(document.body).backgroundColor")
    assert sum(json.loads(dark[3:].replace("(", "[").replace(")", "]"))) < 100
    assert _contrast(browser) > 4.5
    browser.press("t")
    assert browser.text("#theme").endswith("light")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != dark
    browser.run("localStorage.clear()")


def _contrast(browser: Browser) -> float:
    """The lowest contrast of any text to what is behind it (WCAG 2.1)."""
    lowest: float = browser.run(
        """(() => {
          const parse = (text) => text.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
            .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
            .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
          const behind = (element) => {
            for (let at = element; at; at = at.parentElement) {
              const found = parse(getComputedStyle(at).backgroundColor);
              if (found.length < 4 || found[3] === 1) return found;
            }
            return [255, 255, 255];
          };
          let lowest = 21;
          for (const element of document.querySelectorAll('body *')) {
            const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
            if (!own || !element.offsetParent || element.disabled) continue;
            const [a, b] = [parse(getComputedStyle(element).color), behind(element)].map(light);
            lowest = Math.min(lowest, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
          }
          return lowest;
        })()"""
    )
    return lowest


def test_names_and_roles_for_those_who_listen(browser: Browser, tmp_path: Path) -> None:
    """The list, the tree and the heat map have roles, names and a current item."""
    show(browser, strange.incident(), tmp_path)
    browser.click(".waterfall .row:nth-child(4)")
    nodes: list[dict[str, Any]] = browser.call("Accessibility.getFullAXTree")["nodes"]
    by_role = {node["role"]["value"]: node for node in nodes if "name" in node and not node["ignored"]}
    assert {"listbox", "option", "tree", "treeitem", "main", "navigation", "searchbox"} <= set(by_role)
    heat = "document.querySelector('.heat').getAttribute('aria-label')"
    assert browser.run(heat).startswith("6 layers by 12 steps")
    nameless = [
        node for node in nodes
        if node["role"]["value"] in ("button", "searchbox", "checkbox", "listbox", "tree", "treeitem")
        and not node["ignored"]
        and not node.get("name", {}).get("value")
    ]  # fmt: skip
    assert nameless == []


def test_a_printed_page_has_the_whole_trace(browser: Browser, tmp_path: Path) -> None:
    """All rows, not just those that were in sight."""
    show(browser, strange.many_spans(200, 200), tmp_path)
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run("document.querySelectorAll('.waterfall .row').length") == 200
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.querySelectorAll('.waterfall .row').length") < 60
