"""The planners by name. A new one of two workers is a file of its own, its name in `planner_names`, and its line here."""

from edge_agent.planner_names import ACCURATE, BEST, DEFAULT_HORIZON_STEPS, GREEDY, TIER_PLANNER_NAMES
from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers.plans import plan_tiers
from edge_agent.planning.installed import PAIR, installed, there_are
from edge_agent.planning.plan import Plan
from edge_agent.planning.planners.accurate import accurate
from edge_agent.planning.planners.greedy import greedy
from edge_agent.planning.planners.plan import Planner
from edge_agent.planning.search import best, most_exact
from shared.errors import PlanError

PLANNERS: dict[str, Planner] = {
    ACCURATE: accurate,
    GREEDY: greedy,
}
CHAIN_PLANNERS = {ACCURATE: most_exact, BEST: best}


def default_planner(question: Question) -> str:
    """Return the name of the planner that plans where none is named."""
    return BEST if question.is_tiers else ACCURATE


def planned(
    question: Question,
    at: Conditions,
    planner: str,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
    from_cut: int | None = None,
) -> Plan:
    """Return what a planner chooses. horizon_steps, from_cut: as `Planner` has them, of two workers.

    PlanError for one that is not for such a question, and where it can choose nothing.
    """
    if question.is_tiers:
        _check(planner, [*TIER_PLANNER_NAMES], "three tiers")
        return plan_tiers(question, planner, at)
    if not question.is_pair:
        _check(planner, [*CHAIN_PLANNERS], "a chain")
        return CHAIN_PLANNERS[planner](question, at)
    known = PLANNERS if planner in PLANNERS else {**PLANNERS, **installed(PAIR)}
    _check(planner, [*known], "two workers")
    return known[planner](question.profile, at.link(0, 1), question.space, horizon_steps, from_cut)


def check_planner(planner: str) -> None:
    """Refuse a planner that neither we nor the rivals that are installed have. Raises PlanError."""
    ours = dict.fromkeys((*PLANNERS, *CHAIN_PLANNERS, *TIER_PLANNER_NAMES))
    if planner not in ours and planner not in (rivals := installed(PAIR)):
        raise PlanError(f"there is no planner {planner!r}; {there_are([*ours, *rivals], rivals)}")


def _check(planner: str, names: list[str], whose: str) -> None:
    if planner not in names:
        raise PlanError(f"--planner is {planner}; the planners of {whose} are {', '.join(names)}")
