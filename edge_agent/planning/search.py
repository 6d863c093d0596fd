"""Search: the best layout of any family under some conditions, equal to trying every one."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import isfinite

from edge_agent.planner_names import EXACTNESS_MARGIN
from edge_agent.planning.cost import Conditions, conditions_of
from edge_agent.planning.families import chain
from edge_agent.planning.families.loads_at import loads_at
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.registry import families_of, nothing_of
from edge_agent.planning.layout import Layout, layout_of
from edge_agent.planning.plan import Plan
from edge_agent.planning.profile import Profile
from edge_agent.planning.profile_operations import facts_of
from edge_agent.planning.space import SearchSpace
from shared.errors import PlanError
from shared.placement import Permissions, Placement, check

MOST_WORKERS_TO_ORDER = 8
"""Seven trainers have 5,040 orders; eight have eight times as many."""


def best(question: Question, at: Conditions | None = None) -> Plan:
    """Find the layout of the fewest seconds a step with a full pipeline. PlanError where nothing may be chosen.

    at: links as they were measured, where it is left out.
    """
    at = at or conditions_of(question.profile)
    found: Plan | None = None
    refusals: list[PlanError] = []
    for family in families_of(question):
        try:
            for bound, layout in family.bounded(question, at):
                if found is not None and bound >= found.seconds_per_step:
                    break
                seconds = step_seconds(question, layout, at)
                if found is None or seconds < found.seconds_per_step:
                    found = Plan(layout, seconds)
        except PlanError as nothing:
            refusals.append(nothing)
    if found is None:
        raise nothing_of(question, refusals)
    return found


def step_seconds(question: Question, layout: Layout, at: Conditions) -> float:
    """Return the seconds of a step of a layout."""
    (seconds,) = loads_at(question, [layout], at).seconds(at)
    return float(seconds)


def costed(question: Question, placement: Placement, at: Conditions | None = None) -> Plan:
    """Return a given placement as a plan. at: links as they were measured, where it is left out.

    ConfigError for one that is not valid or not permitted. PlanError for what was not measured, a codec among it.
    """
    profile = question.profile
    permitted = Permissions(inputs_to=question.space.inputs_to, gradients_to=frozenset(profile.names))
    check(placement, facts_of(profile), permitted)
    layout = layout_of(placement, partial(_bits_of, profile))
    seconds = step_seconds(question, layout, at or conditions_of(profile))
    if not isfinite(seconds):
        raise PlanError(f"the profile has nothing measured for {layout}; choose another placement")
    return Plan(layout, seconds)


def _bits_of(profile: Profile, codec: str) -> int:
    known = profile.by_samples.codecs if profile.by_samples is not None else {}
    if codec not in known:
        raise PlanError(f"nothing is known of codec {codec!r}; what is known are {', '.join(known) or 'none'}")
    return int(known[codec].bits)


def most_exact(question: Question, at: Conditions | None = None) -> Plan:
    """Find the layout of the most bits on its narrowest link within `EXACTNESS_MARGIN` of the best of all, and then of the
    smallest K."""
    found, widths = best(question, at), sorted(set(question.space.bits), reverse=True)
    most_seconds = (1.0 + EXACTNESS_MARGIN) * found.seconds_per_step
    wider = [replace(question.space, bits=tuple(widths[:count])) for count in range(1, len(widths))]
    chosen = _first_within(question, wider, most_seconds, at)
    space, found = chosen or (question.space, found)
    among = range(found.layout.staleness) if question.is_staleness_open else ()
    smaller = [replace(space, staleness=staleness) for staleness in among]
    chosen = _first_within(question, smaller, most_seconds, at)
    return found if chosen is None else chosen[1]


def _first_within(
    question: Question, spaces: Iterable[SearchSpace], seconds: float, at: Conditions | None
) -> tuple[SearchSpace, Plan] | None:
    for space in spaces:
        try:
            found = best(replace(question, space=space), at)
        except PlanError:  # what was measured, or min_bits, allows none in it
            continue
        if found.seconds_per_step <= seconds:
            return space, found
    return None


def best_order(question: Question) -> Profile:
    """Return the profile in the best order of its trainers, over links as measured; the first worker has the samples and stays.

    Of equal orders, the earliest. PlanError for more than `MOST_WORKERS_TO_ORDER` workers, and where nothing can be chosen.
    """
    profile = question.profile
    first, *others = profile.names
    if len(profile.workers) > MOST_WORKERS_TO_ORDER:
        raise PlanError(
            f"there are {len(profile.workers)} stages, and orders are searched of {MOST_WORKERS_TO_ORDER} at most; give the "
            "order"
        )
    orders = [profile.ordered((first, *order)) for order in permutations(others)]
    leading, least, refusal = None, 0.0, None
    for ordered in orders:
        asked, at = replace(question, profile=ordered), conditions_of(ordered)
        if leading is not None and families_of(asked) == [chain] and not chain.improves(asked, at, least):
            continue
        try:
            seconds = best(asked, at).seconds_per_step
        except PlanError as error:
            refusal = refusal or error
            continue
        if leading is None or seconds < least:
            leading, least = ordered, seconds
    if leading is None:
        assert refusal is not None
        raise refusal
    return leading
