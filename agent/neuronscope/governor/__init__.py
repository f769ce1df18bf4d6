"""The overhead governor: captures are paid for out of a budget that observed work earns.

    costs.py      what a capture will cost, learned by site and size
    turns.py      whose turn it is: the layer that has waited longest, then those that looked abnormal
    accounts.py   who spent what
    observed.py   how much work was observed
    clock.py      CPU time of a thread
    purse.py      the token bucket: earned, spent, left
    coverage.py   layers that run together, and how often each was seen
    hidden.py     what captures cost beside what their clocks see
    bucket.py     where on the ladder we are, the judgement, and what is told
    budget.py     what may be captured now
    ladder.py     the visible state, and who is told of its changes
    ledger.py     whom the worker works for
    measured.py   the same overhead, measured: captures off and on in alternating blocks
    steward.py    all of it, in a running process

A capture is taken at the highest fidelity that the balance affords, so the ceiling holds by construction:
what was spent exceeds what was earned by the starting grant and one mispredicted capture at most.
Spans, tokens, errors and propagation are never withheld; they are accounted for.
"""

from __future__ import annotations

from neuronscope.governor.accounts import Account
from neuronscope.governor.bucket import AGENT_FORGETS_S, MIN_JUDGED_NS
from neuronscope.governor.budget import Budget
from neuronscope.governor.coverage import Coverage, Group
from neuronscope.governor.ledger import Ledger
from neuronscope.governor.purse import GRANT_NS
from neuronscope.governor.turns import Site

__all__ = [
    "AGENT_FORGETS_S",
    "GRANT_NS",
    "MIN_JUDGED_NS",
    "Account",
    "Budget",
    "Coverage",
    "Group",
    "Ledger",
    "Site",
]
