"""A comparison told to people: the story first, and nothing in it that a renderer would take for markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import comparisons
from neuronscope.diagnosis.comparing.result import Cause, Comparison, Evidence, Verdict
from neuronscope.diagnosis.kinds import Kind, Stage
from neuronscope.diagnosis.stories import html, markdown, words
from neuronscope.diagnosis.stories.headlines import HEADLINES
from neuronscope.diagnosis.stories.steps import STEPS, opening
from strange import HOSTILE

_STRUCTURE = (
    "html head meta title link style script body header main section article footer div figure figcaption "
    "details summary"
)
_TEXT = "h1 h2 h3 p ul ol li dl dt dd a b bdi span code kbd button meter table thead tbody tr th td"
_DRAWING = "svg rect path circle line text"
ALLOWED = frozenset(f"{_STRUCTURE} {_TEXT} {_DRAWING}".split())


class Markup(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts = 0
        self.words: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.scripts += tag == "script"
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.words.append(data)


def seen(page: str) -> str:
    """The page's text."""
    return " ".join(" ".join(Markup(page).words).split())


def test_the_story_says_what_changed_where_how_sure_and_what_it_explains() -> None:
    """In this order, before any evidence."""
    text = seen(html(comparisons.swapped()))
    wanted = (
        "The embedder changed. A second cause was found.",
        "all-MiniLM-L6-v2 gives other vectors",
        "in the embedder",
        "practically certain (more than 99 %), from 1 recorded fact and 2 statistical tests",
        "best scores of handbook fell from 0.71 to 0.33",
        "Evidence (3)",
        "What was compared",
    )
    places = [text.index(part) for part in wanted]
    assert places == sorted(places)


def test_what_nothing_explains_and_what_is_damaged_is_said() -> None:
    """A bill that no cause explains; a file that ends early; what could not be told."""
    for told in (seen(html(comparisons.swapped())), markdown(comparisons.swapped())):
        assert "segment 3 ends within a chunk" in told
        assert "prompts were not read" in told
    assert "A call costs 4 % more. not explained" in seen(html(comparisons.swapped()))


def test_no_change_says_what_would_have_been_seen() -> None:
    """The power of the comparison is the answer."""
    for told in (seen(html(comparisons.unchanged())), markdown(comparisons.unchanged())):
        assert "Nothing changed that these recordings could show." in told
        assert "best score of a search: a shift of 8.0 % of the values" in told


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.INSUFFICIENT, Verdict.CHANGED])
def test_every_verdict_has_a_headline(verdict: Verdict) -> None:
    """Also one without any cause."""
    found = Comparison(comparisons.side("a"), comparisons.side("b"), comparisons.swapped().pairing, verdict)
    assert words.headline(found) in seen(html(found))
    assert words.headline(found) in markdown(found)


def test_every_stage_has_words_and_a_place_on_the_path() -> None:
    """A cause of any kind can be told."""
    for kind in Kind:
        cause = Cause(kind, "x", "it is otherwise", 1.0, 1.0)
        page = html(replace(comparisons.swapped(), causes=(cause,), consequences=()))
        assert page.count('<li class="changed">') == 1, kind
        assert f"in {words.PLACES[cause.stage]}" in page
    assert set(words.PLACES) == set(Stage)
    assert set(HEADLINES) == set(Kind)


def test_every_kind_says_what_to_look_at_first() -> None:
    """On the page before any evidence, and in the ticket."""
    assert set(STEPS) == set(Kind)
    found = comparisons.swapped()
    step = STEPS[found.causes[0].kind]
    assert 0 < seen(html(found)).index(step) < seen(html(found)).index("Evidence")
    assert step.partition(";")[0] in markdown(found)


def test_an_example_can_be_opened_where_it_is_in_a_file() -> None:
    """The whole command, its path quoted; nothing for what is in memory."""
    assert opening(["a b/"], ["ab12", "cd34"]) == "neuronscope view 'a b/' --trace ab12"
    assert opening(["live recording"], ["ab12"]) == opening([], ["ab12"]) == opening(["a"], []) == ""


def test_headlines_tell_the_direction() -> None:
    """A provider that got faster is not told as a slow one."""
    found = comparisons.swapped()
    times = Evidence("the first chunk comes after", 0.4, 0.1, 0.9, "ks", "s", 100, 100, 1e-9)
    cause = replace(found.causes[0], kind=Kind.PROVIDER_SLOWER, evidence=(times,))
    assert words.headline(replace(found, causes=(cause,))) == "The provider got faster."
    slower = replace(cause, evidence=(replace(times, before=0.1, after=0.4),))
    assert words.headline(replace(found, causes=(slower,))) == "The provider got slower."
    unknown = replace(cause, evidence=())
    assert words.headline(replace(found, causes=(unknown,))) == "The provider answers at another speed."


def test_nothing_of_a_recording_becomes_markup() -> None:
    """Hostile names everywhere: only our own elements, none with a handler, one script."""
    page = html(comparisons.hostile())
    markup = Markup(page)
    assert markup.tags <= ALLOWED
    assert not [name for name in markup.attributes if name.startswith("on") or name == "style"]
    assert markup.scripts == 1
    assert "\u202e" not in page
    assert "\x1b" not in page
    page.encode()  # no lone surrogate is left


def test_a_ticket_has_no_markup_of_strangers() -> None:
    """No tag, no line break out of a cell, no link, no mention."""
    text = markdown(comparisons.hostile())
    prose = re.sub(r"`[^`\n]*`", "", text)
    assert not re.search(r"(?<!\\)<", prose)
    cells = {line.count(" | ") - line.count("\\|") for line in text.splitlines() if line.startswith("| \\<")}
    assert len(cells) <= 1
    for cause in (
        replace(item, summary="see https://evil.test @you [a](b) | c")
        for item in [comparisons.swapped().causes[0]]
    ):
        told = markdown(replace(comparisons.swapped(), causes=(cause,)))
        assert "https\\://evil.test \\@you \\[a\\](b) \\| c" in told


def test_a_page_is_small_and_asks_for_nothing() -> None:
    """One file: its policy admits one style and one script."""
    page = html(comparisons.swapped())
    assert len(page) < 60_000
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert any(text in page for text in HOSTILE) is False


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (None, "s", "–"),
        ("gpt-4", "", "gpt-4"),
        (0.0123, "s", "12.3 ms"),
        (3.2e-5, "s", "32 µs"),
        (184.0, "s", "3.07 min"),
        (1234.0, "{token}", "1,234 token"),
        (0.25, "1", "25 %"),
        (float("nan"), "1", "NaN"),
        (float("-inf"), "s", "-∞"),
        (5e-9, "", "5.00e-09"),
    ],
)
def test_quantities_read_like_a_person_writes_them(value: str | float | None, unit: str, told: str) -> None:
    """Three digits, and the unit that fits."""
    assert words.quantity(value, unit) == told


def test_a_share_that_is_nearly_all_is_not_told_as_all() -> None:
    """99.8 per cent rounds to 100, which it is not."""
    assert words.percent(0.998) == "more than 99 %"
    assert words.percent(1.0) == "100 %"
    assert words.percent(0.004) == "0.4 %"
