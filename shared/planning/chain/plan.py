"""The plan of a chain: its best partition, in the order of its stages or in any."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from shared.errors import PlanError
from shared.planner_names import EXACTNESS_MARGIN
from shared.planning.chain.costs import ChainCosts, Partition, PartitionCost
from shared.planning.chain.search import best_partition, improves_on
from shared.planning.profile import Profile

MOST_STAGES_TO_ORDER = 8
"""Number of stages whose orders are all tried. Seven trainers have 5,040 orders, which take about a second; eight have
eight times as many."""


@dataclass(frozen=True)
class ChainPlan:
    """The blocks of each stage, and the cost of its step."""

    order: tuple[str, ...]
    """Names of the stages."""
    partition: Partition
    cost: PartitionCost
    seconds_per_step: float


def plan_chain(chain: Profile, bits: Sequence[int], staleness: int | None = None) -> ChainPlan:
    """Return the best partition of a chain in the order of its stages.

    bits: widths to choose from on each link. staleness: K; None lets the slowest part alone count. PlanError if nothing
    can be chosen.
    """
    return _plan_of(chain, ChainCosts(chain, bits), staleness)


def plan_chain_accurately(chain: Profile, bits: Sequence[int], staleness: int | None = None) -> ChainPlan:
    """Return the partition with the most bits on its narrowest link among those within `EXACTNESS_MARGIN` of the best of all.

    bits, staleness and PlanError: as for `plan_chain`.
    """
    costs = ChainCosts(chain, bits)
    best = _plan_of(chain, costs, staleness)
    for narrowest in range(1, len(costs.widths)):
        try:
            plan = _plan_of(chain, costs.only(costs.widths[:narrowest]), staleness)
        except PlanError:  # the measurements, or min_bits, allow none so wide
            continue
        if plan.seconds_per_step <= (1.0 + EXACTNESS_MARGIN) * best.seconds_per_step:
            return plan
    return best


def plan_any_order(chain: Profile, bits: Sequence[int], staleness: int | None = None) -> ChainPlan:
    """Return the same in the best order of the trainers. The first stage has the samples and stays. Of equal orders,
    the earliest.

    PlanError also for more than `MOST_STAGES_TO_ORDER` stages, and if a link between two stages is not known.
    """
    first, *others = chain.names
    if len(chain.workers) > MOST_STAGES_TO_ORDER:
        raise PlanError(
            f"there are {len(chain.workers)} stages, and orders are searched of {MOST_STAGES_TO_ORDER} at most; give the order"
        )
    orders = [chain.ordered((first, *order)) for order in permutations(others)]
    best, refusal = None, None
    for ordered in orders:
        if best is not None and not improves_on(ChainCosts(ordered, bits), staleness, best.seconds_per_step):
            continue
        try:
            best = plan_chain(ordered, bits, staleness)
        except PlanError as error:
            refusal = refusal or error
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def _plan_of(chain: Profile, costs: ChainCosts, staleness: int | None) -> ChainPlan:
    partition = best_partition(costs, staleness)
    cost = costs.of(partition)
    return ChainPlan(chain.names, partition, cost, cost.seconds_per_step(staleness))
