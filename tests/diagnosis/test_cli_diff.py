"""``neuronscope diff``: the story on a terminal, JSON, files, and exit codes for gates."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.diagnosis.side import Service

from neuronscope.artifact import Artifact, Telemetry
from neuronscope.cli import cli
from neuronscope.cli.diff import FailOn
from neuronscope.diagnosis.comparing.result import Cause
from neuronscope.diagnosis.kinds import Kind

BEFORE, AFTER = Service(seed=1), Service(seed=2)


@pytest.fixture
def recordings(tmp_path: Path) -> tuple[str, str, str]:
    """Before; after with another template; after without a change."""
    paths: list[str] = []
    for name, service in (("a", BEFORE), ("b", replace(AFTER, pieces=(11, 44, 33))), ("c", AFTER)):
        Artifact(Telemetry(service.spans(), []), ({"service.name": "ask"},)).save(tmp_path / f"{name}.nsz")
        paths.append(str(tmp_path / f"{name}.nsz"))
    return paths[0], paths[1], paths[2]


def diff(*arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    result = CliRunner().invoke(cli, ["diff", *arguments])
    return result.exit_code, result.output


def test_the_cause_is_told_with_its_evidence(recordings: tuple[str, str, str]) -> None:
    """Verdict, cause, confidence, evidence, examples."""
    code, text = diff(*recordings[:2])
    assert code == 0
    for words in (
        "Changed",
        "1. The prompt's template of /ask is another",
        "prompt_changed, stage prompt",
        "for example",
        "look first: Compare the template of both releases",
    ):
        assert words in text
    (opening,) = re.findall(r"an example of the first: neuronscope (view .*)", text)
    shown = CliRunner().invoke(cli, shlex.split(opening))
    assert shown.exit_code == 0
    assert "/ask" in shown.output


def test_no_change_is_told_with_what_would_have_been_seen(recordings: tuple[str, str, str]) -> None:
    """A first-class answer."""
    code, text = diff(recordings[0], recordings[2])
    assert code == 0
    assert "No change" in text
    assert "What would have been seen" in text


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ([], 0),
        (["prompt_changed"], 1),
        (["any"], 1),
        (["prompt_changed:0.2"], 1),
        (["prompt_changed:0.9"], 0),
        (["model_changed"], 0),
        (["model_changed", "prompt_changed"], 1),
        (["no_such_kind"], 2),
        (["prompt_changed:much"], 2),
        (["prompt_changed:nan"], 2),
    ],
)
def test_a_gate_fails_on_what_it_names(recordings: tuple[str, str, str], rules: list[str], code: int) -> None:
    """0: nothing of it; 1: found; 2: wrong usage."""
    options = [option for rule in rules for option in ("--fail-on", rule)]
    assert diff(*recordings[:2], *options)[0] == code


def test_a_gate_passes_where_nothing_changed(recordings: tuple[str, str, str]) -> None:
    """Another draw of the same traffic."""
    assert diff(recordings[0], recordings[2], "--fail-on", "any")[0] == 0


def test_a_gate_does_not_pass_on_nothing(recordings: tuple[str, str, str]) -> None:
    """A candidate that recorded nothing, or a mistyped window: 3, not "passed"; without a gate it is told."""
    empty = (recordings[0], "--before", "..1700000060", "--after", "2030-01-01..2031-01-01")
    code, text = diff(*empty, "--fail-on", "any")
    assert code == 3
    assert "nothing could be decided: too little to compare (60 and 0 traces)" in text
    assert diff(*empty)[0] == 0


def test_json_is_all_there_is_on_the_output(recordings: tuple[str, str, str]) -> None:
    """For tools."""
    code, text = diff(*recordings[:2], "--format", "json", "--fail-on", "any")
    assert code == 1
    assert json.loads(text.splitlines()[0])["causes"][0]["kind"] == "prompt_changed"


def test_windows_of_one_recording(recordings: tuple[str, str, str]) -> None:
    """One path and two windows; without them it is wrong usage."""
    windows = ("--before", "..1700000060", "--after", "2023-11-14T22:14:20..")
    code, text = diff(recordings[0], *windows, "--format", "json")
    assert code == 0
    found = json.loads(text)
    assert (found["before"]["traces"], found["after"]["traces"]) == (60, 60)
    assert diff(recordings[0])[0] == 2
    assert diff(recordings[0], "--before", "yesterday", "--after", "..")[0] == 2
    assert diff()[0] == 2


def test_the_ticket_tells_the_windows_that_were_compared(
    recordings: tuple[str, str, str], tmp_path: Path
) -> None:
    """What it says to type again compares the same windows, not the whole recording with itself."""
    ticket = tmp_path / "story.md"
    windows = ("--before", "..1700000060", "--after", "2023-11-14T22:14:20.5..")
    assert diff(recordings[0], *windows, "--markdown", str(ticket), "--format", "json")[0] == 0
    (again,) = re.findall(r"Again: `neuronscope diff (.*)`", ticket.read_text("utf-8"))
    words = shlex.split(again)
    assert words[1:] == ["--before", "..2023-11-14T22:14:20Z", "--after", "2023-11-14T22:14:20.500000Z.."]
    code, text = diff(*words, "--format", "json")
    assert (code, json.loads(text)["after"]["traces"]) == (0, 59)


@pytest.mark.parametrize(
    "window",
    ["nan..", "..inf", "-5..", "1e300..", "tomorrow..", "1970-01-02..1970-01-01", "2026-11-30T12:00:00"],
)
def test_a_window_that_makes_no_sense_is_wrong_usage(recordings: tuple[str, str, str], window: str) -> None:
    """A message that leads on, no traceback, and no comparison of nothing."""
    code, text = diff(recordings[0], "--before", window, "--after", "1970-01-01..")
    assert (code, "Error: Invalid value for '--before'" in text) == (2, True)


def test_brackets_in_a_path_and_in_names_are_no_markup(tmp_path: Path) -> None:
    """They are shown as they are."""
    folder = tmp_path / "[bold]" / "[" / "bold]"
    folder.mkdir(parents=True)
    path = folder / "a.nsz"
    Artifact(Telemetry(BEFORE.spans(), []), ({"service.name": "ask"},)).save(path)
    code, text = diff(str(path), str(path))
    assert code == 0
    assert "[/bold]" in "".join(text.split())


def test_a_page_and_a_ticket_are_written(recordings: tuple[str, str, str], tmp_path: Path) -> None:
    """The story as HTML and Markdown."""
    page, ticket = tmp_path / "story.html", tmp_path / "story.md"
    assert diff(*recordings[:2], "--html", str(page), "--markdown", str(ticket))[0] == 0
    assert "template" in page.read_text(encoding="utf-8")
    assert "template" in ticket.read_text(encoding="utf-8")


def test_a_rule_matches_from_its_effect_on() -> None:
    """An effect of one half."""
    cause = Cause(Kind.INDEX_LOST, "", "", 0.5, 0.9)
    assert FailOn(Kind.INDEX_LOST, 0.5).matches(cause)
    assert FailOn(None, 0.1).matches(cause)
    assert not FailOn(Kind.INDEX_LOST, 0.6).matches(cause)
    assert not FailOn(Kind.INDEX_GREW, 0.0).matches(cause)
