"""The deployments that the engine weighs against each other, as arrays over n of them.

Each has the largest K that is allowed, or K = 0: what K is for on a link that fluctuates, no steady cost model sees, and K = 0
spares the replay.
"""

import numpy as np

from shared.planning.cost import PlannedDeployment, StepWork, work_of
from shared.planning.measurements import Bools
from shared.planning.profile import Profile
from shared.planning.space import SearchSpace, candidates


class Candidates:
    """All of a search space, and today's deployment, which need not be of it."""

    def __init__(self, profile: Profile, space: SearchSpace, today: PlannedDeployment) -> None:
        """PlanError when the space is malformed or leaves nothing to choose."""
        once, choices = candidates(profile, space), space.best_staleness(profile)
        self.work: StepWork = once if len(choices) == 1 else once.joined(once)
        self.staleness = np.repeat(np.array(choices, dtype=np.int64), len(once.cuts))
        """K of each, shape (n,)."""
        self.allowed: Bools = np.ones(len(self.staleness), dtype=np.bool_)
        """Which are of the space, shape (n,)."""
        if today not in self:
            self.work = self.work.joined(work_of(profile, [today.cut], [today.bits]))
            self.staleness = np.append(self.staleness, today.staleness)
            self.allowed = np.append(self.allowed, False)

    def __len__(self) -> int:
        """n."""
        return len(self.staleness)

    def __contains__(self, deployment: PlannedDeployment) -> bool:
        return bool(self._same(deployment).any())

    def __getitem__(self, index: int) -> PlannedDeployment:
        return PlannedDeployment(int(self.work.cuts[index]), int(self.staleness[index]), int(self.work.bits[index]))

    def index(self, deployment: PlannedDeployment) -> int:
        """Where a deployment stands among them. IndexError where it is none of them."""
        return int(np.flatnonzero(self._same(deployment))[0])

    def same_but_staleness(self, deployment: PlannedDeployment) -> Bools:
        """Which have its cut and its bits, shape (n,)."""
        same: Bools = (self.work.cuts == deployment.cut) & (self.work.bits == deployment.bits)
        return same

    def _same(self, deployment: PlannedDeployment) -> Bools:
        same: Bools = self.same_but_staleness(deployment) & (self.staleness == deployment.staleness)
        return same
