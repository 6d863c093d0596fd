"""The seconds of a step in the event simulator: what a step takes where workers share blocks, or links a segment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from edge_agent.planning.cost.conditions import Conditions
from edge_agent.planning.cost.layouts import computing_seconds
from edge_agent.planning.cost.loads import Loads, joined
from edge_agent.planning.cost.programs import loads_of_step
from edge_agent.planning.layout import Layout
from edge_agent.planning.placement_simulator import steady_step_seconds
from edge_agent.planning.profile import Profile
from edge_agent.planning.profile_operations import coded, facts_of
from edge_agent.planning.rates import Rates
from edge_agent.planning.step_tasks import step_tasks
from edge_agent.planning.tasks import StepTasks
from shared.placement import Cargo, Link, Placement, Route, crossings


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


def simulated_loads(profile: Profile, layouts: Sequence[Layout], at: Conditions) -> Loads:
    """Return the loads of each layout's step, in this order: under these conditions, its seconds are the simulator's.

    PlanError for a width of which the profile has no codec.
    """
    simulated = Simulated(profile, at)
    return joined([_loads_at(simulated, profile, layout, at) for layout in layouts])


def _loads_at(simulated: Simulated, profile: Profile, layout: Layout, at: Conditions) -> Loads:
    placement, costs = coded(profile, layout), profile.by_samples
    assert costs is not None
    # Devices as they were measured: factors come from the conditions.
    step = Simulated(profile, replace(at, factors=np.ones(len(at.factors)))).tasks(placement)
    loads = loads_of_step(step, profile.names, at)
    work = computing_seconds(profile, layout)
    for one in crossings(placement, facts_of(profile)):
        codec = placement.codecs.get(Route(one.sender, one.receiver, one.cargo))
        if one.cargo is Cargo.FEATURE and codec is not None:
            plain_bytes = costs.feature_bytes[one.index] * one.rows.count
            work[profile.names.index(one.sender)] += costs.codecs[codec].encode.at(plain_bytes)
    loads = replace(
        loads,
        work={place: np.array([work[place]]) for place in loads.work},
        host={place: busy - work[place] for place, busy in loads.work.items()},
    )
    return replace(loads, stretch=simulated.seconds(placement) / loads.seconds(at))
