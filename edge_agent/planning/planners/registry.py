"""The planners by what they plan and by name. Another is a file of its own, its name in `planner_names`, and its line here."""

from dataclasses import replace
from functools import partial

from edge_agent.planner_names import ACCURATE, BEST, GREEDY, HIERTRAIN
from edge_agent.planning.cost import Conditions, conditions_of
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers.family import search
from edge_agent.planning.families.tiers.formulas import BASELINES, plan_baseline, plan_by_phases
from edge_agent.planning.installed import PAIR, installed, there_are
from edge_agent.planning.layout import Layout
from edge_agent.planning.plan import Plan
from edge_agent.planning.planners.accurate import accurate
from edge_agent.planning.planners.greedy import greedy
from edge_agent.planning.planners.plan import Planner
from edge_agent.planning.search import best, most_exact
from shared.errors import PlanError

TWO_WORKERS, CHAIN, TIERS = "two workers", "a chain", "three tiers"
PLANNERS: dict[str, dict[str, Planner]] = {
    TWO_WORKERS: {ACCURATE: accurate, GREEDY: greedy},
    CHAIN: {ACCURATE: most_exact, BEST: best},
    TIERS: {BEST: search, HIERTRAIN: plan_by_phases, **{name: partial(plan_baseline, name) for name in BASELINES}},
}
"""The first of each plans where none is named."""


def default_planner(question: Question) -> str:
    """Return the name of the planner that plans where none is named."""
    return next(iter(PLANNERS[_asked_of(question)]))


def planned(question: Question, planner: str, at: Conditions | None = None) -> Plan:
    """Return what a planner chooses. at: links as they were measured, where it is left out.

    PlanError for one that is not for such a question, and where it can choose nothing.
    """
    asked_of = _asked_of(question)
    known = PLANNERS[asked_of]
    if planner not in known and asked_of == TWO_WORKERS:
        known = {**known, **installed(PAIR)}
    if planner not in known:
        raise PlanError(f"--planner is {planner}; the planners of {asked_of} are {', '.join(known)}")
    return known[planner](question, at or conditions_of(question.profile))


def first_layout(question: Question, at: Conditions) -> Layout:
    """Choose the first layout of a run with an engine: the fastest, of two workers with one of the K that the engine weighs.

    The plan that prefers exactness is for a link that does not change. If the rates drop soon after the probe, a run
    that begins with more bits takes up to 14 % longer on recorded links.
    """
    if not question.is_pair:
        return best(question, at).layout
    found, choices = greedy(question, at).layout, question.space.best_staleness(question.profile)
    return found if found.staleness in choices else replace(found, staleness=choices[0])


def check_planner(planner: str) -> None:
    """Refuse a planner that neither we nor the rivals that are installed have. Raises PlanError."""
    ours = dict.fromkeys(name for planners in PLANNERS.values() for name in planners)
    if planner not in ours and planner not in (rivals := installed(PAIR)):
        raise PlanError(f"there is no planner {planner!r}; {there_are([*ours, *rivals], rivals)}")


def _asked_of(question: Question) -> str:
    return TIERS if question.is_tiers else TWO_WORKERS if question.is_pair else CHAIN
