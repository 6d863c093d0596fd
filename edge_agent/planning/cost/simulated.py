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
from edge_agent.planning.profile_operations import coded, facts_of, placement_tasks
from edge_agent.planning.rates import Rates
from shared.placement import Cargo, Link, Placement, Route, crossings


def simulated_seconds(profile: Profile, placement: Placement, at: Conditions) -> float:
    """Return the seconds of a step of any placement with a full pipeline, by a profile that has costs by samples.

    PlanError for a codec that the profile lacks.
    """
    factors = dict(zip(profile.names, at.factors.tolist(), strict=True))
    return steady_step_seconds(placement_tasks(profile, placement, _rates_at(profile, at), factors))


def simulated_loads(profile: Profile, layouts: Sequence[Layout], at: Conditions) -> Loads:
    """Return the loads of each layout's step, in this order: under these conditions, its seconds are the simulator's.

    PlanError for a width of which the profile has no codec.
    """
    return joined([_loads_at(profile, layout, at) for layout in layouts])


def _rates_at(profile: Profile, at: Conditions) -> Mapping[Link, Rates]:
    places = {name: place for place, name in enumerate(profile.names)}
    return {Link(near, far): at.link(places[near], places[far]) for near, far in combinations(profile.names, 2)}


def _loads_at(profile: Profile, layout: Layout, at: Conditions) -> Loads:
    placement, costs = coded(profile, layout), profile.by_samples
    assert costs is not None
    # Devices as they were measured: factors come from the conditions.
    step = placement_tasks(profile, placement, _rates_at(profile, at))
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
    return replace(loads, stretch=simulated_seconds(profile, placement, at) / loads.seconds(at))
