"""The seconds of a step in the event simulator: what a step takes where workers share blocks, or links a segment."""

from collections.abc import Mapping
from itertools import combinations

from shared.placement import Link, Placement
from shared.planning.cost.conditions import Conditions
from shared.planning.placement_simulator import steady_step_seconds
from shared.planning.profile import Profile
from shared.planning.profile_operations import facts_of
from shared.planning.rates import Rates
from shared.planning.tasks import StepTasks, step_tasks


class Simulated:
    """The steps of any placement, by a profile that has costs by samples, under some conditions."""

    def __init__(self, profile: Profile, at: Conditions) -> None:
        assert profile.by_samples is not None
        places = {name: place for place, name in enumerate(profile.names)}
        self._rates: Mapping[Link, Rates] = {
            Link(near, far): at.link(places[near], places[far]) for near, far in combinations(profile.names, 2)
        }
        factors = {name: float(at.factors[place]) for name, place in places.items() if at.factors[place] != 1.0}
        self._costs = profile.by_samples.slowed(factors) if factors else profile.by_samples
        self._shared = profile.shared_segments
        self._facts = facts_of(profile)

    def tasks(self, placement: Placement) -> StepTasks:
        """Return the tasks of a step. PlanError for a codec that the profile lacks."""
        return step_tasks(placement, self._facts, self._costs, self._rates, shared=self._shared)

    def seconds(self, placement: Placement) -> float:
        """Return the seconds of a step with a full pipeline."""
        return steady_step_seconds(self.tasks(placement))
