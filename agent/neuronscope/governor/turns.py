"""Whose turn it is: every layer is seen once before any is seen twice, as far as the budget goes."""

from __future__ import annotations

from neuronscope.governor.costs import UNKNOWN, Costs

# A layer that looked abnormal keeps its preference for this many of its captures.
ABNORMAL_FOR = 32


class Site:
    """One place where captures are taken: a probe at a layer, within one budget.

    Attributes:
        probe: the probe or adapter that the cost is told under.
        layer: the layer's id.
        full, summary: learned costs of the two kinds of capture.
        full_table, summary_table: the same as tables by size class; infinite before the first capture.
        turn: the sweep in which it was last captured.
        taken: how often it was captured.
        refused: how often it ran and was not.
        nbytes: size of its latest tensor.
        abnormal: captures for which it still has preference.
        preferred: what it adds to the sum of those that looked abnormal.
    """

    __slots__ = (
        "_mean", "_n", "_spread", "abnormal", "asked_at", "critical", "full", "full_table", "layer", "nbytes",
        "parked", "preferred", "probe", "refused", "summary", "summary_table", "taken", "turn", "weight",
    )  # fmt: skip

    def __init__(self, probe: str, layer: str, *, critical: bool = False) -> None:
        self.probe = probe
        self.layer = layer
        self.critical = critical
        self.full = Costs()
        self.summary = Costs()
        self.full_table = self.summary_table = UNKNOWN
        self.turn = 0
        self.refused = 0
        self.asked_at = 0
        self.taken = 0
        self.nbytes = 0
        self.abnormal = 0
        self.parked = False
        self.preferred = 0.0
        self.weight = 0.0  # what this site adds to the sums of `Turns`
        self._n = 0
        self._mean = 0.0
        self._spread = 0.0

    def took(self) -> None:
        """A capture was taken: its cost is known now."""
        self.taken += 1
        self.full_table, self.summary_table = self.full.table, self.summary.table

    def look(self, value: float, finite: bool) -> None:
        """Tell what a capture looked like: `value` is any statistic that is steady in health."""
        if not finite:
            self.abnormal = ABNORMAL_FOR
            return
        self._n += 1
        away = abs(value - self._mean)
        if self._n > 16 and away > 6 * self._spread + 1e-6 * abs(self._mean):
            self.abnormal = ABNORMAL_FOR
        elif self.abnormal:
            self.abnormal -= 1
        rate = max(0.05, 1 / self._n)
        self._mean += rate * (value - self._mean)
        self._spread += rate * (away - self._spread)


class Turns:
    """Orders sites by how long ago they were captured, in sweeps.

    A sweep ends when every site that runs has been captured in it.  A site that does not run any more
    (another model's turn) is parked: the sweep goes on without it, and when it runs again it is the one
    that has waited longest.  Costs are sums of summaries' predictions, kept up to date: hundreds of layers
    ask in every forward, so no answer may look at all of them.  Not thread-safe.

    Attributes:
        sweep: number of the current sweep.
        after: what the worker will do for a capture, in ns.
        behind: sites that have missed a whole sweep.
        largest: the most that one of the sites costs.
        owed: what the sites cost that have not been captured in this sweep.
        parked: the same of those that do not run.
    """

    __slots__ = (
        "_abnormal",
        "_asks",
        "_by_turn",
        "_idle_asks",
        "_last_waiting_ask",
        "_sites",
        "after",
        "behind",
        "largest",
        "owed",
        "parked",
        "sweep",
        "total",
        "waiting",
    )

    def __init__(self) -> None:
        self.sweep = 1
        self.after = 0.0
        self.behind = 0
        self.largest = 0.0
        self.owed = 0.0
        self.parked = 0.0
        self.total = 0.0
        self.waiting = 0
        self._sites: list[Site] = []
        self._by_turn: dict[int, float] = {}
        self._abnormal = 0.0
        self._asks = 0
        self._last_waiting_ask = 0
        self._idle_asks = 0

    def __len__(self) -> int:
        return len(self._sites)

    @property
    def sites(self) -> list[Site]:
        """All sites."""
        return self._sites

    def add(self, site: Site) -> None:
        """A new site: it has waited longest."""
        self._sites.append(site)
        site.turn = self.sweep - 1
        self._set_weight(site)
        self.waiting += 1
        self.owed += site.weight
        self.total += site.weight
        self._count(site.turn, site.weight)

    def ask(self, site: Site) -> None:
        """The site runs, and no more than its turn is affordable."""
        self._asks += 1
        if site.turn < self.sweep:
            self._last_waiting_ask = self._asks
            self._idle_asks = 0
            if site.parked:
                site.parked = False
                self.parked -= site.weight
                self.owed += site.weight
                self.waiting += 1
        elif self.waiting and site.asked_at > self._last_waiting_ask:
            # This one has run twice, and none that waits has run in between.
            self._idle_asks += 1
            if self._idle_asks > 2 * len(self._sites):
                self._park_waiting()
        site.asked_at = self._asks

    def weigh(self, site: Site, nbytes: int) -> None:
        """The site's tensor has another size now."""
        site.nbytes = nbytes
        before = site.weight
        self._set_weight(site)
        more = site.weight - before
        self.total += more
        self._count(site.turn, more)
        if site.parked:
            self.parked += more
        elif site.turn < self.sweep:
            self.owed += more

    def left_behind(self, site: Site) -> bool:
        """Has the site missed a whole sweep?"""
        return site.turn < self.sweep - 1

    def older(self, site: Site) -> float:
        """What the sites cost that have waited longer than this one."""
        if site.turn >= self.sweep:
            return self.owed + self.parked
        if site.turn >= self.sweep - 1 and self.parked == 0.0:
            return 0.0
        turn = site.turn
        return sum(weight for other, weight in self._by_turn.items() if other < turn)

    def took(self, site: Site) -> None:
        """The site is captured."""
        preferred = site.weight if site.abnormal else 0.0
        if preferred != site.preferred:
            self._abnormal += preferred - site.preferred
            site.preferred = preferred
        if site.turn < self.sweep:
            self._count(site.turn, -site.weight)
            self._count(self.sweep, site.weight)
            self.behind -= site.turn < self.sweep - 1
            if site.parked:
                site.parked = False
                self.parked -= site.weight
            else:
                self.owed -= site.weight
                self.waiting -= 1
            site.turn = self.sweep
            if self.waiting <= 0:
                self._next_sweep()

    def abnormal(self) -> float:
        """What one more look at every layer that looked abnormal costs."""
        return self._abnormal

    def _count(self, turn: int, weight: float) -> None:
        self._by_turn[turn] = self._by_turn.get(turn, 0.0) + weight

    def _park_waiting(self) -> None:
        for site in self._sites:
            if site.turn < self.sweep and not site.parked:
                site.parked = True
        self._next_sweep()

    def _next_sweep(self) -> None:
        self.sweep += 1
        self._idle_asks = 0
        self.owed = self.parked = self.largest = 0.0
        self.waiting = self.behind = 0
        self._abnormal = 0.0
        self._by_turn.clear()
        for site in self._sites:
            self._set_weight(site)
            self._count(site.turn, site.weight)
            site.preferred = site.weight if site.abnormal else 0.0
            self._abnormal += site.preferred
            self.behind += site.turn < self.sweep - 1
            if site.parked:
                self.parked += site.weight
            else:
                self.owed += site.weight
                self.waiting += 1
        self.total = self.owed + self.parked
        if not self.waiting and self._sites:  # all parked: whoever runs next wakes itself
            self.owed = 0.0

    def _set_weight(self, site: Site) -> None:
        site.weight = site.summary.predict(site.nbytes) + self.after
        self.largest = max(self.largest, site.weight)
