"""The page of a comparison in a real browser: read, driven by keys, attacked."""

from __future__ import annotations

from pathlib import Path

import pytest

import comparisons
from browser import Browser
from neuronscope.diagnosis.comparing.result import Comparison
from neuronscope.diagnosis.stories import html

pytestmark = pytest.mark.integration


def show(browser: Browser, found: Comparison, folder: Path) -> None:
    path = folder / "story.html"
    path.write_text(html(found), "utf-8")
    browser.open(path)


def test_the_story_is_read_first_and_keys_lead_to_the_evidence(browser: Browser, tmp_path: Path) -> None:
    """The headline is on the first screen; j goes to a cause, e opens its evidence, k goes back."""
    show(browser, comparisons.swapped(), tmp_path)
    assert browser.text("h1").startswith("The embedder changed.")
    assert "gives other vectors" in browser.text(".lead")
    assert browser.run("document.querySelector('h1').getBoundingClientRect().bottom < innerHeight")
    browser.press("j", "j")
    assert "provider slower" in browser.run("document.activeElement.innerText")
    browser.press("k", "e")
    assert "embedder changed" in browser.run("document.activeElement.innerText")
    opened = "[...document.querySelectorAll('.evidence')].map((part) => part.open)"
    assert browser.run(opened) == [True, False]
    assert "< 1e-6" in browser.text(".evidence table")


def test_light_and_dark_differ_and_the_key_chooses(browser: Browser, tmp_path: Path) -> None:
    """As the system prefers, until somebody chooses."""
    background = "getComputedStyle(document.body).backgroundColor"
    show(browser, comparisons.unchanged(), tmp_path)
    light = browser.run(background)
    browser.prefer("dark")
    dark = browser.run(background)
    assert light != dark
    browser.press("t")
    assert browser.run(background) == light
    assert browser.text("#theme") == "Theme: light"


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Browser, tmp_path: Path) -> None:
    """On a phone everything fits the width."""
    browser.resize(390, 844, mobile=True)
    for found in (comparisons.swapped(), comparisons.hostile()):
        show(browser, found, tmp_path)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_strings_do_nothing(browser: Browser, tmp_path: Path) -> None:
    """They are shown as they are."""
    show(browser, comparisons.hostile(), tmp_path)
    browser.press("j", "e", "t")
    assert browser.run("window.harmed === undefined")
    assert "<img src=x onerror='window.harmed = 2'>" in browser.text(".lead")
