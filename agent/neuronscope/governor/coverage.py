"""Layers that run together, and how often each was seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neuronscope.governor.turns import Site


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often one layer ran while watched, and how often it was captured."""

    probe: str
    layer: str
    ran: int
    captured: int


class Group:
    """Sites that run together: the watched layers of one model, forward by forward.

    Attributes:
        sites: the sites.
        refused: forwards in which none of them was watched.
        not_before: the clock's reading before which nothing can have become affordable: there is no use
            in asking `Budget.plan` earlier.
    """

    __slots__ = ("not_before", "refused", "sites")

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self.refused = 0
        self.not_before = 0


def coverage(sites: Sequence[Site], groups: Iterable[Group]) -> list[Coverage]:
    """What was captured at each site, forwards in which it was not even watched included."""
    unwatched: dict[Site, int] = {}
    for group in groups:
        for site in group.sites:
            unwatched[site] = unwatched.get(site, 0) + group.refused
    return [
        Coverage(site.probe, site.layer, site.taken + site.refused + unwatched.get(site, 0), site.taken)
        for site in sites
    ]
