"""Plans of three tiers: what a planner chooses, or a placement that is given, and what the models say of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from edge_agent.planner_names import BEST, HIERTRAIN
from edge_agent.planning.cost import Conditions, Simulated, conditions_of
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers.baselines import baseline
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import Divisions, columns_of
from edge_agent.planning.families.tiers.divisions import Division, divisions_of
from edge_agent.planning.families.tiers.family import layout_of, search, widths_of
from edge_agent.planning.papers.hiertrain import eq12_seconds, hiertrain
from edge_agent.planning.profile_operations import coded, facts_of
from edge_agent.planning.space import check_staleness, check_widths
from edge_agent.planning.tasks import Direction, StepTasks
from shared.errors import PlanError
from shared.placement import Link, Permissions, Placement, check


@dataclass(frozen=True)
class TierPlan:
    """A placement of three tiers, and its costs."""

    placement: Placement
    division: Division | None
    """None where the placement is no division among roles o, s and l."""
    seconds_per_step: float
    """Seconds of a step with a full pipeline, in the simulator."""
    eq12_seconds: float | None
    """Seconds of a step in phases; None without a division."""
    worker_seconds: Mapping[str, float]
    """Seconds for which a step keeps each worker busy."""
    link_seconds: Mapping[Link, tuple[float, float]]
    """Seconds for which a step keeps each link busy, up and down."""
    evaluated: int = 1
    """Number of divisions that were simulated or, by `hiertrain`, added up."""
    proved: bool = False
    """True if no division takes fewer seconds."""


class TierPlanner:
    """The planners for one question, over links as measured."""

    def __init__(self, question: Question) -> None:
        """PlanError for a K or a width that cannot be."""
        profile, space = question.profile, question.space
        check_staleness(space.staleness)
        check_widths(space.bits)
        self._question, self._profile, self._staleness = question, profile, space.staleness or 0
        self._at: Conditions = conditions_of(profile)
        self._bounds = Bounds(profile, self._at, self._staleness)
        self._simulated = Simulated(profile, self._at)

    def plan(self, planner: str) -> TierPlan:
        """Return what a planner chooses, one of `TIER_PLANNER_NAMES`. PlanError where it can choose nothing."""
        if planner == BEST:
            found = search(self._question, self._at)
            placement = coded(self._profile, found.layout)
            division = self._cheapest(placement, found.division.before)
            return self._costed(placement, division, found.simulated, found.proved)
        choices = Choices(self._question, widths_of(self._question))
        if planner != HIERTRAIN:
            return self._of(baseline(planner, self._bounds, choices))
        phased = hiertrain(self._bounds, choices)
        if phased is None:
            raise PlanError(
                f"{HIERTRAIN} finds no division that may be chosen; permit raw samples to a trainer, or the device alone"
            )
        return self._of(phased[0], phased[2])

    def cost(self, placement: Placement) -> TierPlan:
        """Return the costs of any placement; of divisions that are the same placement, the one of the fewest seconds in phases.

        ConfigError for one that is not valid or not permitted, PlanError for a codec that
        the profile lacks."""
        names = frozenset(self._profile.names)
        permitted = Permissions(inputs_to=self._question.space.inputs_to, gradients_to=names)
        check(placement, facts_of(self._profile), permitted)
        return self._costed(placement, self._cheapest(placement), 1, proved=False)

    def _cheapest(self, placement: Placement, before: int | None = None) -> Division | None:
        """Return the division of the fewest seconds in phases that a placement is. before: its p, where that is given."""
        same = (one for one in divisions_of(placement, self._profile.names) if before in (None, one.before))
        return min(same, key=self._phased, default=None)

    def _phased(self, division: Division) -> float:
        return float(eq12_seconds(self._bounds, columns_of(division, self._profile.names))[0])

    def _of(self, one: Divisions, evaluated: int = 1) -> TierPlan:
        names, blocks, batch_size = self._profile.names, len(self._profile), self._profile.batch_size
        placement = coded(self._profile, layout_of(one, names, blocks, batch_size, self._staleness))
        return self._costed(placement, one.division(0, names), evaluated, proved=False)

    def _costed(self, placement: Placement, division: Division | None, evaluated: int, proved: bool) -> TierPlan:
        step = self._simulated.tasks(placement)
        carried = _carried(step)
        return TierPlan(
            placement,
            division,
            self._simulated.seconds(placement),
            None if division is None else self._phased(division),
            {worker: sum(task.seconds + task.tail_seconds for task in tasks) for worker, tasks in step.workers.items()},
            {
                Link(near, far): (carried.get((near, far), 0.0), carried.get((far, near), 0.0))
                for near, far in self._profile.links
            },
            evaluated,
            proved,
        )


def _carried(step: StepTasks) -> dict[Direction, float]:
    carried: dict[Direction, float] = {}
    for each in (each for tasks in step.workers.values() for task in tasks for each in task.deliveries):
        carried[each.direction] = carried.get(each.direction, 0.0) + each.carry_seconds
    return carried
