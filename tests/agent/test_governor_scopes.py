"""What the budgets of scopes know of the costs that earlier scopes had, on a fake clock."""

from __future__ import annotations

import itertools

from neuronscope.governor import Budget
from neuronscope.signals.records import Fidelity

LAYERS = 200
clock = itertools.count(1).__next__


def captured(budget: Budget) -> int:
    """How many layers of a forward; the worker does its part afterwards."""
    granted = 0
    budget.enter()
    for layer in range(LAYERS):
        site = budget.site("LayerActivations", f"tiny/{layer}")
        if budget.admit(site, Fidelity.SUMMARY, 4096) is not Fidelity.OFF:
            granted += 1
            budget.spend(site, Fidelity.SUMMARY, 4096, 20_000)
    budget.charge_worker("LayerActivations", 10_000 * granted, granted)
    return granted


def test_a_scope_begins_with_what_the_worker_did_for_captures_of_earlier_ones() -> None:
    """The first holds back until the worker has told: in a forward of many layers it leaves some out."""
    agent = Budget(50, clock=clock)
    assert captured(Budget(50, clock=clock, parent=agent)) == 50
    outer = Budget(50, clock=clock, parent=agent)
    assert captured(Budget(50, clock=clock, parent=outer)) == LAYERS
    assert captured(outer) == LAYERS


def test_of_the_agents_own_records_scopes_say_nothing() -> None:
    """They may be written to a disk, which costs otherwise."""
    agent = Budget(50, clock=clock)
    captured(Budget(50, clock=clock, parent=agent))
    assert captured(agent) == 50
