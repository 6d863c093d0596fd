"""The planners of three tiers that choose by formulas: Eq. 12 of paper 004, and what it is compared with."""

from edge_agent.planner_names import HIERTRAIN
from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers.baselines import baseline
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import Divisions
from edge_agent.planning.families.tiers.family import layout_of, seconds_of, widths_of
from edge_agent.planning.papers.hiertrain import hiertrain
from edge_agent.planning.plan import Plan
from edge_agent.planning.space import check_staleness, check_widths
from shared.errors import PlanError


def plan_by_phases(question: Question, at: Conditions) -> Plan:
    """Choose the division of the fewest seconds in phases (Eq. 12), with K = 0 where it is left open."""
    bounds, choices = _weighed(question, at)
    phased = hiertrain(bounds, choices)
    if phased is None:
        raise PlanError(
            f"{HIERTRAIN} finds no division that may be chosen; permit raw samples to a trainer, or the device alone"
        )
    chosen, _, evaluated = phased
    return _plan_of(question, at, chosen, evaluated)


def plan_baseline(name: str, question: Question, at: Conditions) -> Plan:
    """Choose what one of the planners chooses that divisions are compared with, with K = 0 where it is left open."""
    return _plan_of(question, at, baseline(name, *_weighed(question, at)), 1)


def _weighed(question: Question, at: Conditions) -> tuple[Bounds, Choices]:
    check_staleness(question.space.staleness)
    check_widths(question.space.bits)
    return Bounds(question.profile, at, question.space.staleness or 0), Choices(question, widths_of(question))


def _plan_of(question: Question, at: Conditions, chosen: Divisions, evaluated: int) -> Plan:
    profile = question.profile
    layout = layout_of(chosen, profile.names, len(profile), profile.batch_size, question.space.staleness or 0)
    return Plan(layout, seconds_of(question, layout, at), evaluated=evaluated)
