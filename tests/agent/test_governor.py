"""The budget's ladder, judgement and bookkeeping, on a fake clock."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from neuronscope.governor import GRANT_NS, MIN_JUDGED_NS, Budget, Ledger, Site
from neuronscope.governor.costs import FIRST_NS, GROWTH, Costs
from neuronscope.governor.ladder import Ladder
from neuronscope.recording import Recording
from neuronscope.settings import OverheadAction
from neuronscope.signals.records import Fidelity

MS = 1_000_000
SECOND = 1000 * MS


class Bench:
    """A budget with a clock in hand, and captures of known cost."""

    def __init__(self, pct: float = 5, action: OverheadAction = "reduce", **budget: Any) -> None:
        self.now = 1
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.budget = Budget(
            pct,
            action,
            clock=lambda: self.now,
            on_event=lambda name, facts: self.events.append((name, facts)),
            **budget,
        )
        self.site = self.budget.site("LayerActivations", "tiny/0")
        self.budget.enter()

    def work(self, ns: int) -> None:
        self.now += ns
        self.budget.tick()

    def capture(
        self, cost: dict[Fidelity, int], want: Fidelity = Fidelity.FULL, site: Site | None = None
    ) -> Fidelity:
        site = site or self.site
        fidelity = self.budget.admit(site, want, 4096)
        if fidelity is not Fidelity.OFF:
            self.now += cost[fidelity]
            self.budget.spend(site, fidelity, 4096, cost[fidelity])
            self.budget.charge_worker("LayerActivations", 0, 1)
        return fidelity


CHEAP = {Fidelity.FULL: 20_000, Fidelity.SUMMARY: 10_000}
DEAR = {Fidelity.FULL: 6 * MS, Fidelity.SUMMARY: MS}


def test_what_is_affordable_is_taken_in_full() -> None:
    """Far within the budget nothing is lowered, left out or told."""
    bench = Bench()
    for _ in range(200):
        bench.work(MS)
        assert bench.capture(CHEAP) is Fidelity.FULL
    assert bench.budget.state is Fidelity.FULL
    assert bench.budget.skipped == bench.budget.reduced == 0
    assert not bench.events


def test_the_ladder_goes_down_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    """Full, then summaries, then nothing; each step is told once, with percentage and probe."""
    bench = Bench()
    with caplog.at_level(logging.WARNING, "neuronscope"):
        seen = [bench.capture(DEAR) for _ in range(60)]
    steps = [
        fidelity for fidelity, before in zip(seen, [None, *seen], strict=False) if fidelity is not before
    ]
    assert steps[:3] == [Fidelity.FULL, Fidelity.SUMMARY, Fidelity.OFF]
    assert bench.budget.state is Fidelity.CRITICAL
    assert [facts["state"] for _, facts in bench.events] == ["summary", "critical"]
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert "5 %" in record.getMessage()
        assert "LayerActivations" in record.getMessage()


def test_critical_probes_stay_where_the_others_are_left_out() -> None:
    """As the specification says it of attention maps: what they cost more is not taken from what is vital."""
    bench = Bench()
    maps = bench.budget.site("AttentionMaps", "tiny/0")
    health = bench.budget.site("NumericHealth", "tiny/0", critical=True)
    seen: list[tuple[Fidelity, Fidelity]] = []
    for _ in range(600):
        bench.work(MS)
        left_out = bench.capture(DEAR, site=maps)
        seen.append((left_out, bench.capture(CHEAP, Fidelity.SUMMARY, health)))
    late = seen[300:]
    assert sum(fidelity is Fidelity.OFF for fidelity, _ in late) > 0.9 * len(late)
    assert sum(fidelity is Fidelity.SUMMARY for _, fidelity in late) > 0.7 * len(late)


def state_of(budget: Budget) -> Fidelity:
    """The state now; type checkers take a property for a constant."""
    return budget.state


@pytest.mark.parametrize(
    ("work_s", "told"),
    [(0.0, "(before there was work to have a share of)"), (2.5, "(40.0 % of 2.5 s of work)")],
)
def test_a_share_of_no_work_is_not_told(work_s: float, told: str, caplog: pytest.LogCaptureFixture) -> None:
    """At the start a share would be a number without a meaning."""
    facts = {"budget_pct": 5.0, "overhead_pct": 40.0, "work_s": work_s, "probe": "LayerActivations"}
    ladder = Ladder(lambda: facts, None)
    ladder.withheld(Fidelity.SUMMARY, 1)
    with caplog.at_level(logging.WARNING, "neuronscope"):
        ladder.deliver("agent", ladder.outbox)
    assert [told in record.getMessage() for record in caplog.records] == [True]


def test_the_ladder_goes_up_again_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    """Captures resume when a sweep is affordable; the state says so only after a while without refusals."""
    bench = Bench()
    for _ in range(60):
        bench.capture(DEAR)
    assert bench.capture(DEAR) is Fidelity.OFF
    bench.work(400 * MS)  # earns 20 ms
    assert bench.capture(DEAR) is not Fidelity.OFF
    assert bench.budget.state is Fidelity.CRITICAL
    for _ in range(30):
        bench.work(200 * MS)
        assert bench.capture(DEAR) is not Fidelity.OFF
    assert state_of(bench.budget) is Fidelity.FULL
    assert bench.events[-1][1]["state"] == "full"


def test_the_state_does_not_flicker() -> None:
    """At the edge, with a refusal in every few runs, the visible state changes once a second at most."""
    bench = Bench()
    for _ in range(2_000):
        bench.work(2 * MS)
        bench.capture(DEAR, Fidelity.SUMMARY)
    assert 0.2 < bench.budget.skipped / 2_000 < 0.95
    assert len(bench.events) <= 5


def test_a_cold_capture_forbids_nothing_for_long() -> None:
    """The first capture took 80 ms (an import): later ones, cheap as they are, are taken soon after."""
    bench = Bench(pct=15)
    assert bench.capture({Fidelity.SUMMARY: 80 * MS, Fidelity.FULL: 0}, Fidelity.SUMMARY) is Fidelity.SUMMARY
    taken = 0
    for _ in range(1_000):
        bench.work(MS)
        taken += bench.capture(CHEAP, Fidelity.SUMMARY) is not Fidelity.OFF
    # 60 ms have to be earned back first, at 0.15 ms a run
    assert taken > 550


def test_prediction_is_per_size() -> None:
    """A prefill of a megabyte does not make the decoding of four kilobytes look expensive."""
    costs = Costs()
    for _ in range(50):
        costs.learn(1 << 20, 400_000)
        costs.learn(4096, 10_000)
    assert costs.predict(1 << 20) == pytest.approx(400_000, rel=0.05)
    assert costs.predict(4096) == pytest.approx(10_000, rel=0.05)
    assert costs.predict(1 << 24) >= 16 * 390_000  # unknown sizes are taken to cost in proportion


def test_one_outlier_moves_a_prediction_by_a_bounded_factor() -> None:
    """And a refusal lowers it, down to a floor: it is tried again."""
    costs = Costs()
    for _ in range(20):
        costs.learn(4096, 10_000)
    costs.learn(4096, 1e9)
    assert costs.predict(4096) <= 10_000 * GROWTH
    for _ in range(10_000):
        costs.refuse(4096)
    assert costs.predict(4096) == FIRST_NS


@pytest.mark.parametrize(("action", "limit"), [("warn", 2), ("abort", 1)])
def test_warn_and_abort_withhold_nothing_until_their_limit(action: OverheadAction, limit: int) -> None:
    """`warn` ends captures beyond twice the budget, `abort` beyond the budget; and both owe an exception."""
    bench = Bench(20, action)
    bench.work(MIN_JUDGED_NS + 2 * GRANT_NS * 5)
    seen = Fidelity.FULL
    while seen is Fidelity.FULL:
        seen = bench.capture({Fidelity.FULL: MS})
    assert seen is Fidelity.OFF
    assert bench.budget.overhead_pct == pytest.approx(20 * limit, abs=0.5)
    error = bench.budget.verdict()
    assert error is not None
    assert error.probe == "LayerActivations"
    assert error.budget_pct == 20
    assert bench.budget.state is Fidelity.OFF


def test_a_scope_too_short_to_judge_is_not_judged() -> None:
    """The grant alone is more than the budget of a millisecond; that is no reason for an exception."""
    bench = Bench(5, "abort")
    for _ in range(10):
        bench.work(MS)
        bench.capture(DEAR)
    assert bench.budget.overhead_pct > 100
    assert bench.budget.verdict() is None


def test_the_agent_recovers_from_exhaustion() -> None:
    """Beyond twice the budget the agent's captures go off; once the past has faded they come back."""
    bench = Bench(5, "warn", forget_s=10)
    bench.work(10 * SECOND)
    while bench.capture({Fidelity.FULL: 50 * MS}) is Fidelity.FULL:
        pass
    assert bench.budget.state is Fidelity.OFF
    for _ in range(300):
        bench.work(100 * MS)
    assert bench.capture({Fidelity.FULL: 50 * MS}) is Fidelity.FULL
    assert next(facts["state"] for name, facts in bench.events if name == "neuronscope.fidelity") == "off"


def test_a_quiet_time_does_not_pay_for_a_minute_of_captures() -> None:
    """What the agent may save up is what ten seconds of work earn."""
    bench = Bench(5, forget_s=60)
    for _ in range(1000):
        bench.work(SECOND)
    spent = 0
    while bench.capture({Fidelity.FULL: MS, Fidelity.SUMMARY: MS}) is not Fidelity.OFF:
        spent += MS
    assert spent <= 0.05 * 10.1 * SECOND


def test_concurrent_awaits_earn_once() -> None:
    """A thousand calls that wait at the same time earn what one does; idle time earns nothing."""
    bench = Bench()
    for _ in range(1000):
        bench.budget.enter()
    bench.now += SECOND
    for _ in range(1000):
        bench.budget.leave("client", 10_000)
    bench.budget.leave()
    bench.now += 10 * SECOND
    assert bench.budget.observed_ns() == SECOND


def test_work_is_bounded_by_the_cpu_that_the_process_used() -> None:
    """Waiting for a network earns nothing: the cost is CPU, and so is what it is compared with."""
    cpu = 0
    now = 1
    budget = Budget(5, clock=lambda: now, cpu=lambda: cpu)
    budget.enter()
    for _ in range(100):
        now += 100 * MS
        cpu += MS
        budget.tick()
    assert budget.work_ns == 100 * MS


def test_what_observation_takes_is_no_work() -> None:
    """A capture does not earn its own repetition."""
    bench = Bench(50)
    bench.work(SECOND)
    for _ in range(20):
        bench.capture({Fidelity.FULL: 10 * MS, Fidelity.SUMMARY: 10 * MS})
    bench.budget.tick()
    assert bench.budget.work_ns == pytest.approx(SECOND, abs=MS)


def test_a_wall_clock_reading_counts_as_far_as_it_can_be_ours() -> None:
    """A thread that lost the GIL inside our code for 50 ms is charged a few times the usual cost."""
    bench = Bench()
    for _ in range(100):
        bench.budget.charge("neuronscope.openai", 4_000)
    bench.budget.charge("neuronscope.openai", 50 * MS)
    assert bench.budget.accounts["neuronscope.openai"].hot_ns < 500_000


def test_inner_scopes_pay_for_themselves_and_are_told_outside() -> None:
    """The agent's figure has everything; its own captures are not cut because a scope may spend more."""
    agent = Bench(5)
    inner = Budget(50, clock=lambda: agent.now, parent=agent.budget)
    inner.enter()
    site = inner.site("LayerActivations", "tiny/0")
    for _ in range(100):
        agent.work(10 * MS)
        assert inner.admit(site, Fidelity.FULL, 4096) is Fidelity.FULL
        agent.now += 2 * MS
        inner.spend(site, Fidelity.FULL, 4096, 2 * MS)
        inner.charge_worker("LayerActivations", 10_000, 1)
    assert inner.overhead_pct == pytest.approx(20, rel=0.05)
    assert agent.budget.overhead_pct == pytest.approx(20, rel=0.05)
    assert agent.capture(CHEAP) is Fidelity.FULL


def test_captures_are_paused_without_earning() -> None:
    """In the blocks that measure the service without captures nothing is saved up for the others."""
    bench = Bench()
    bench.work(SECOND)
    worked = bench.budget.work_ns
    while bench.budget.looks():
        bench.budget.set_aside(MS)
    bench.budget.pause(True)
    bench.work(SECOND)
    bench.budget.pause(False)
    assert not bench.budget.looks()
    assert bench.budget.work_ns == pytest.approx(worked + SECOND, rel=0.01)  # spans were paid for it
    bench.work(SECOND)
    assert bench.budget.looks()


def test_only_planned_layers_need_watching() -> None:
    """Before a forward the budget names the layers that may be captured: all, the oldest, or none."""
    bench = Bench()
    sites = [bench.budget.site("agent.blocks", f"tiny/{i}") for i in range(12)]
    group = bench.budget.group(sites)
    assert list(bench.budget.plan(group)) == sites
    for site in [*sites, *[sites[0]] * 40]:
        bench.capture(DEAR, Fidelity.SUMMARY, site)
    assert len(bench.budget.plan(group)) <= 1
    bench.work(150 * MS)  # earns 7.5 ms
    assert 4 < len(bench.budget.plan(group)) < 12
    assert {layer.layer: layer.ran for layer in bench.budget.coverage}["tiny/11"] > 1


def test_the_workers_time_goes_to_those_it_worked_for() -> None:
    """A scope's records are charged to the scope, an export without new items to those of before."""
    agent, scope = Budget(15), Budget(15)
    recording = Recording("scope", scope, 1 << 20)
    ledger = Ledger(agent)
    for _ in range(3):
        ledger.span(None, "neuronscope.openai")
    ledger.span(recording, "neuronscope.qdrant")
    ledger.settle(400_000)
    ledger.settle(40_000)
    assert agent.accounts["neuronscope.openai"].worker_ns == pytest.approx(330_000)
    assert scope.accounts["neuronscope.qdrant"].worker_ns == pytest.approx(110_000)
    Ledger(agent).settle(1_000)
    assert agent.accounts["worker"].worker_ns == 1_000


def test_a_layer_that_looks_abnormal_goes_first() -> None:
    """Non-finite values, or a statistic far from its own past, give a layer preference for a while."""
    site = Site("probe", "0")
    for i in range(100):
        site.look(1 + 0.01 * (i % 3), finite=True)
    assert not site.abnormal
    site.look(5.0, finite=True)
    assert site.abnormal
    other = Site("probe", "1")
    other.look(1.0, finite=False)
    assert other.abnormal


def noted(bench: Bench, n: int, cost: float, clocked: float = -1.0) -> None:
    """Captures that were taken out of the allowance, and are settled."""
    bench.budget.allowance.left -= n * cost
    bench.budget.settle("LayerActivations", [(bench.site, 4096, cost, clocked)] * n)


def test_an_allowance_is_lent_and_settled_at_what_captures_cost() -> None:
    """Expected costs count until the clock tells better; what is left over is nobody's loss."""
    bench = Bench(action="warn")
    bench.capture(CHEAP, Fidelity.SUMMARY)
    bench.work(SECOND)
    bench.budget.advance()
    lent = bench.budget.allowance.left
    assert 0 < lent <= GRANT_NS  # nothing is withheld: an eighth else
    noted(bench, 10, 10_000.0)
    assert bench.budget.accounts["LayerActivations"].hot_ns == 10_000 + 100_000
    noted(bench, 1, 10_000.0, 14_000.0)
    assert bench.budget.accounts["LayerActivations"].hot_ns == 10_000 + 114_000
    assert 10_000 < bench.site.summary.predict(4096) <= 14_000
    assert bench.site.taken == 12
    bench.budget.pause(True)
    assert bench.budget.allowance.left == 0
    bench.budget.advance()
    assert bench.budget.allowance.left == 0  # nothing is lent while captures are off


def test_what_is_lent_is_not_spent_twice() -> None:
    """It comes off what may be taken without more ado, and counts in the judgement before it is settled."""
    bench = Bench(pct=5)
    bench.capture(CHEAP, Fidelity.SUMMARY)
    for _ in range(50):
        bench.work(10 * MS)
    before = bench.budget._surplus  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
    bench.budget.advance()
    after = bench.budget._surplus  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
    assert after == before - bench.budget.allowance.left
    assert bench.budget.allowance.left > 0
    strict = Bench(action="abort")
    strict.capture(CHEAP, Fidelity.SUMMARY)
    strict.work(MIN_JUDGED_NS * 5)
    for _ in range(100):  # spent, and not settled
        strict.budget.advance()
        strict.budget.allowance.left = 0.0
        strict.work(2 * MS)
    assert strict.budget.exhausted
    assert strict.budget.allowance.left == 0
    strict.budget.advance()
    assert strict.budget.allowance.left == 0
