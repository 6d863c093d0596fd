"""The best placement on two workers of three, or on one, by the simulator."""

from dataclasses import dataclass

import numpy as np

from edge_agent.planning import Profile, Question, SearchSpace, conditions_of, simulated_seconds
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import Divisions, layout_of
from edge_agent.planning.measurements import FLOAT32_BITS, Bools, Ints
from edge_agent.planning.profile_operations import coded
from shared.placement import Placement


@dataclass(frozen=True)
class Best:
    """A placement, and its seconds of a step in the simulator."""

    placement: Placement
    seconds: float


def best_of_fewer(profile: Profile, inputs_to: frozenset[str], staleness: int = 0) -> Best:
    """Return the best division that leaves a worker out: each whose bound permits it is simulated."""
    question = Question(profile, SearchSpace((FLOAT32_BITS,), staleness, inputs_to=inputs_to))
    choices, at = Choices(question), conditions_of(profile)
    every = choices.listed(range(choices.first_cut, len(profile) + 1), range(1, profile.batch_size + 1))
    among = every.take(np.flatnonzero(_workers(every) < len(profile.names)))
    bounds = Bounds(profile, at, staleness).seconds(among)
    found: Best | None = None
    for row in np.argsort(bounds):
        if found is not None and bounds[row] >= found.seconds:
            break
        one = among.take(np.array([row]))
        layout = layout_of(one, profile.names, len(profile), profile.batch_size, staleness)
        placement = coded(profile, layout)
        seconds = simulated_seconds(profile, placement, at)
        if found is None or seconds < found.seconds:
            found = Best(placement, seconds)
    assert found is not None, "the device alone leaves two out"
    return found


def _workers(of: Divisions) -> Ints:
    """Return the number of workers that compute in each."""
    rows = np.arange(of.rows)
    computes: Bools = np.zeros((3, of.rows), dtype=np.bool_)
    computes[of.original, rows] = True
    computes[of.short, rows] |= of.short_samples > 0
    computes[of.long, rows] |= of.long_samples > 0
    computes[0] |= of.before > 0
    count: Ints = computes.sum(axis=0)
    return count
