"""The benchmarks' own parts: figures, the page, callgrind's files, patches, pacing; nothing here is timed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.benchmarks import __main__ as main
from tests.benchmarks import docs, governor
from tests.benchmarks.callgrind import read_dumps
from tests.benchmarks.calls.patches import Patches
from tests.benchmarks.children import Child, ChildError, child_environment
from tests.benchmarks.figures import Figure, Run, at_least, at_most, save
from tests.benchmarks.governor_arms import there_and_back
from tests.benchmarks.governor_program import SOCKETS, Program, socket_path
from tests.benchmarks.measure import Switch, compare, spread
from tests.benchmarks.pairs import LEAST_PAIRS, Excess, agreement, excess, turns
from tests.benchmarks.venvs import ROOT


def test_a_figure_tells_goal_and_best_peer() -> None:
    """The best peer is the lowest, or the highest where more is better; a missing one does not count."""
    told = Figure("g.cost", 2.0, "µs", at_most(1), {"a": 9.0, "b": 4.0, "c": None}).to_json()
    assert told["peer"] == 4.0
    assert told["ok"] is False
    assert told["goal"] == "≤ 1"
    more = Figure("g.rate", 20.0, "spans/s", at_least(10), {"a": 9.0, "b": 4.0})
    assert more.peer == 9.0
    assert more.ok is True


def test_an_unmeasured_figure_is_neither_met_nor_missed() -> None:
    """Its value is null, and its note says why."""
    told = Figure("g.cost", None, "µs", at_most(1), note="no valgrind").to_json()
    assert told["value"] is None
    assert told["ok"] is None
    assert told["note"] == "no valgrind"


def test_a_run_replaces_only_its_own_group(tmp_path: Path) -> None:
    """Other groups' figures stay in the results."""
    path = tmp_path / "benchmarks.json"
    save("one", Run(), [Figure("one.a", 1, "s")], 1.0, path)
    save("two", Run(), [Figure("two.a", 2, "s")], 1.0, path)
    save("one", Run(), [Figure("one.b", 3, "s")], 1.0, path)
    results = json.loads(path.read_text())
    assert [figure["name"] for figure in results["one"]["figures"]] == ["one.b"]
    assert [figure["name"] for figure in results["two"]["figures"]] == ["two.a"]


def test_figures_of_a_run_of_some_join_those_of_earlier_runs(tmp_path: Path) -> None:
    """The same name is replaced where it stands; the others stay, and the time adds up."""
    path = tmp_path / "benchmarks.json"
    save("one", Run(facts=["first"]), [Figure("one.a", 1, "s"), Figure("one.b", 2, "s")], 10.0, path)
    save(
        "one", Run(facts=["then"]), [Figure("one.c", 3, "s"), Figure("one.a", 4, "s")], 5.0, path, merge=True
    )
    found = json.loads(path.read_text())["one"]
    told = [(figure["name"], figure["value"]) for figure in found["figures"]]
    assert told == [("one.a", 4), ("one.b", 2), ("one.c", 3)]
    assert found["seconds"] == 15
    assert found["facts"] == ["first", "then"]


def test_the_page_tells_missed_goals_and_unequal_work(tmp_path: Path) -> None:
    """Plainly, above the table; and every peer's figure."""
    path = tmp_path / "benchmarks.json"
    run = Run(versions={"Peer": "1.2"}, facts=["Peer: does less."])
    figures = [
        Figure(
            "calls.chat_hot", 12.5, "µs", at_most(10), {"Peer": 99.0, "Other": 70.0}, spread([12, 12.5, 13])
        ),
        Figure("calls.rate", None, "spans/s", at_least(40_000), note="not measured: no collector"),
    ]
    save("calls", run, figures, 61.0, path)
    page = docs.render(json.loads(path.read_text()))
    assert "- chat hot: 12.5 µs instead of ≤ 10 µs." in page
    assert "| chat hot | 12.5 µs | ≤ 10 | 70 µs | **missed** |" in page
    assert "| chat hot | µs | 12.5 | 99 | 70 |" in page
    assert "| rate |  | ≥ 40000 |  | not measured |" in page
    assert "- Peer: does less." in page
    assert "Peer 1.2" in page


def test_only_selects_figures() -> None:
    """By a part of the name; without it everything is wanted."""
    assert Run().wants("calls.chat_hot")
    assert Run(only=("chat",)).wants("calls.chat_hot")
    assert not Run(only=("sustained",)).wants("calls.chat_hot", "calls.chat_situ")


def test_instructions_are_read_by_label_and_thread(tmp_path: Path) -> None:
    """A dump that no request asked for is ignored."""
    head = "version: 1\npart: {part}\nthread: {thread}\ndesc: Trigger: {trigger}\nsummary: {n}\ntotals: {n}\n"
    (tmp_path / "out.1-01").write_text(
        head.format(part=1, thread=1, trigger="Client Request: chat.on|4", n=400)
    )
    (tmp_path / "out-02").write_text(head.format(part=2, thread=2, trigger="Program termination", n=7))
    assert read_dumps(tmp_path) == {"chat.on": {1: 100.0}}


def test_patches_come_off_and_go_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed method, and one that a subclass now overrides; not what an import added."""
    module = ModuleType("patched_library")

    class Client:
        def request(self) -> str:
            return "plain"

    class Child(Client):
        pass

    Client.__module__ = Child.__module__ = module.__name__
    vars(module).update(Client=Client, Child=Child)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    patches = Patches(module.__name__)

    def patched(_: object) -> str:
        return "patched"

    def overridden(_: object) -> str:
        return "overridden"

    monkeypatch.setattr(Client, "request", patched)
    monkeypatch.setattr(Child, "request", overridden, raising=False)
    vars(module)["Late"] = type("Late", (), {})
    assert patches.found() == 2
    patches.off()
    patches.off()
    assert (Client().request(), Child().request()) == ("plain", "plain")
    patches.on()
    assert (Client().request(), Child().request()) == ("patched", "overridden")


def test_a_round_measures_both_sides_in_turn() -> None:
    """The first round begins without the instrumentation, the next with it."""
    order: list[str] = []
    switch = Switch(on=lambda: order.append("on"), off=lambda: order.append("off"))
    for turn in (0, 1):
        off, on = compare(switch, lambda: None, 10, turn, hot=turn == 0)
        assert off >= 0
        assert on >= 0
    assert order == ["off", "on", "on", "off"]


def test_an_excess_has_an_interval_that_contains_the_truth_and_counts_what_is_rare() -> None:
    """Paired blocks whose cost drifts together; one in twenty has a burst, which a median would not see."""
    rng = random.Random(1)
    hits = 0
    for _ in range(200):
        base, arm = list[float](), list[float]()
        for turn in range(20):
            drift = rng.uniform(0.5, 2)
            base.append(100 * drift * rng.uniform(0.98, 1.02))
            arm.append((105 + (100 if turn == 7 else 0)) * drift * rng.uniform(0.98, 1.02))
        found = excess(arm, base)
        hits += found.low <= 10 <= found.high
        assert found.value > 5.5
    assert hits >= 150
    assert excess([103.0] * 9, [100.0] * 9).value == pytest.approx(3)
    assert excess([103.0] * 9, [100.0] * 9).half == pytest.approx(0, abs=1e-9)


def test_turns_end_when_it_is_precise_enough_or_the_time_is_over() -> None:
    """But not before the least number of pairs."""
    assert list(turns(9, 1e9)) == list(range(9))
    assert list(turns(9, 1e9, lambda: True)) == list(range(LEAST_PAIRS))
    assert list(turns(9, -1.0)) == list(range(LEAST_PAIRS))


def test_the_agents_figure_is_held_against_the_outside_one() -> None:
    """By how many points it lies beyond the agent's interval; insufficient data count as such."""
    truth = Excess(12.0, 11.0, 13.0, 9)
    assert agreement("g", [10.0, 8.0, 12.5, 9.0], truth).value == 0
    beyond = agreement("g", [5.0, 4.0, 6.0, 5.0], truth)
    assert beyond.value == 6
    assert beyond.ok is False
    assert agreement("g", None, truth).value is None
    assert "insufficient data" in agreement("g", None, truth).note


def test_a_turn_goes_there_and_back() -> None:
    """So that what drifts is in all arms alike."""
    assert list(there_and_back(("off", "quiet", "on"))) == ["off", "quiet", "on", "on", "quiet", "off"]


@pytest.mark.integration
def test_a_running_program_is_switched(tmp_path: Path) -> None:
    """It runs as by itself, with its own arguments, and its observation goes off and on again."""
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\n"
        "from openai import OpenAI\n"
        "print(sys.argv[1:], __name__, flush=True)\n"
        "for _ in sys.stdin:\n"
        "    print(OpenAI.request, flush=True)\n"
    )
    command = [sys.executable, "-m", "tests.benchmarks.governor_program", sys.executable, str(script), "--x"]
    environment = child_environment(sys.executable, {SOCKETS: str(tmp_path), "OTEL_SERVICE_NAME": "p"})
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "['--x'] __main__\n"
        with Program(socket_path(tmp_path, "p")) as program:
            first = program.ask("cpu")
            seen: list[str] = []
            for arm in ("on", "off", "quiet", "on"):
                program.ask("switch", arm=arm)
                print("what is it now?", file=process.stdin, flush=True)
                seen.append(process.stdout.readline())
            on, off, quiet, last = seen
            assert off not in (on, quiet, last)
            assert program.ask("cpu") > first > 0
            assert program.ask("accounts")["captured"] == 0
            program.ask("start_experiment")
            assert program.ask("experiment_ended") is False
            assert program.ask("end_experiment") is None
        process.stdin.close()
        assert process.wait(60) == 0


def test_what_spans_cost_unseen_is_a_multiple_of_the_accounted() -> None:
    """With its interval."""
    figure = governor.unseen("governor.unseen.x", 0.5, Excess(1.0, 0.5, 1.5, 9))
    assert figure.value == pytest.approx(2)
    assert figure.interval == (1.0, 3.0, 9)


def test_a_run_that_is_ended_keeps_what_it_has_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour's figures are not lost, and the ending is told."""
    group, kept = ModuleType("tests.benchmarks.ended"), list[tuple[str, list[str]]]()

    def figures(_: Run) -> Iterator[Figure]:
        yield Figure("ended.one", 1.0, "µs")
        raise SystemExit(143)

    def keep(_group: str, run: Run, done: list[Figure], *_: Any, **_how: Any) -> None:
        kept.append((done[0].name, run.facts))

    monkeypatch.setattr(group, "figures", figures, raising=False)
    monkeypatch.setitem(sys.modules, group.__name__, group)
    monkeypatch.setattr(main, "GROUPS", ("ended", "never"))
    monkeypatch.setattr(main, "save", keep)
    monkeypatch.setattr(signal, "signal", print)
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    with pytest.raises(SystemExit, match="143"):
        main.main()
    assert kept == [("ended.one", ["The run stopped early: somebody ended it"])]


def test_a_child_that_dies_says_why() -> None:
    """The last line of its log is in the error."""
    child = Child("tests.benchmarks.calls.openai_child", "nobody", "content")
    with child, pytest.raises(ChildError, match="KeyError: 'nobody'"):
        child.ask("verify")
