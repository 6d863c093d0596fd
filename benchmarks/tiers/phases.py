"""A step in phases, as Eq. 12 of paper 004 counts it."""

import numpy as np

from edge_agent.planning import Conditions, Layout, Question, conditions_of
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.columns import columns_of
from edge_agent.planning.families.tiers.divisions import Division, divisions_of
from edge_agent.planning.papers.hiertrain import eq12_seconds


def phases_of(question: Question, layout: Layout, at: Conditions | None = None) -> tuple[Division, float] | None:
    """Return the division that a layout is, with the seconds of a step in phases (Eq. 12); None where it is no division.

    Of several divisions, the one of the fewest seconds.
    """
    names = question.profile.names
    bounds = Bounds(question.profile, at or conditions_of(question.profile), layout.staleness)
    each = [
        (float(eq12_seconds(bounds, columns_of(division, names))[0]), division)
        for division in divisions_of(layout.placement(names), names)
    ]
    if not each:
        return None
    row = int(np.argmin([seconds for seconds, _ in each]))
    seconds, division = each[row]
    return division, seconds
