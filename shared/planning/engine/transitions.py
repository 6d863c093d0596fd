"""How long it takes to get from one candidate to another: until blocks have moved and the pipeline is full."""

from types import EllipsisType

import numpy as np

from shared.planning.cost import migration_seconds
from shared.planning.engine.candidates import Candidates
from shared.planning.engine.estimates import Estimates
from shared.planning.measurements import Floats
from shared.planning.profile import Profile
from shared.planning.rates import Rates

Index = int | EllipsisType
"""One candidate, or all of them."""


class Transitions:
    """The ways between candidates, at what is believed of the link."""

    def __init__(self, profile: Profile, candidates: Candidates, estimates: Estimates) -> None:
        self._profile = profile
        self._candidates = candidates
        self._estimates = estimates

    def seconds(self, start: Index, end: Index, *rates: Rates) -> Floats:
        """Until training goes on as fast as it will, by the given rates or those of now and the mean: the most.

        Another K counts as well: on the way to a smaller one and back the pipeline runs empty once.
        """
        ways = []
        for each in rates or (self._estimates.now, self._estimates.mean):
            phases = self._estimates.phases(each)
            ways.append(self._moving(start, end, each) + phases.filling()[end])
        cuts, staleness = self._candidates.work.cuts, self._candidates.staleness
        moves = (cuts[start] != cuts[end]) | (staleness[start] != staleness[end])
        return np.where(moves, np.max(ways, axis=0), 0.0)

    def seconds_now(self, start: int) -> Floats:
        """To each candidate at the rates of now, shape (n,)."""
        return self.seconds(start, ..., self._estimates.now)

    def moving_seconds(self, start: int, end: int) -> float:
        """The part of `seconds` in which the blocks are on the link; 0 where the cut stays."""
        return max(float(self._moving(start, end, rates)) for rates in (self._estimates.now, self._estimates.mean))

    def _moving(self, start: Index, end: Index, rates: Rates) -> Floats:
        cuts = self._candidates.work.cuts
        return migration_seconds(self._profile, cuts[start], cuts[end], rates)
