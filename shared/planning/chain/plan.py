"""The plan of a chain: its best partition, in the order of its stages or in any."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from shared.errors import PlanError
from shared.planning.chain.costs import ChainCosts, Partition, PartitionCost
from shared.planning.chain.measured_chain import MeasuredChain
from shared.planning.chain.search import best_partition, improves_on

MOST_STAGES_TO_ORDER = 8
"""Seven trainers have 5,040 orders, which take about a second; eight have eight times as many."""


@dataclass(frozen=True)
class ChainPlan:
    """Which stage has which blocks, and what a step of it takes."""

    order: tuple[str, ...]
    """The names of the stages."""
    partition: Partition
    cost: PartitionCost
    seconds_per_step: float


def plan_chain(chain: MeasuredChain, bits: Sequence[int], staleness: int | None = None) -> ChainPlan:
    """The best partition of a chain in the order of its stages.

    bits: widths to choose from on each link. staleness: K; None lets the slowest part alone count. PlanError where nothing can
    be chosen.
    """
    costs = ChainCosts(chain, bits)
    partition = best_partition(costs, staleness)
    cost = costs.of(partition)
    order = tuple(stage.name for stage in chain.stages)
    return ChainPlan(order, partition, cost, cost.seconds_per_step(staleness))


def plan_any_order(chain: MeasuredChain, bits: Sequence[int], staleness: int | None = None) -> ChainPlan:
    """The same in the best order of the trainers; the first stage has the samples and stays. Of equal orders, the earliest.

    PlanError also for more than `MOST_STAGES_TO_ORDER` stages, and where a link between two stages is not known.
    """
    first, *others = (stage.name for stage in chain.stages)
    if len(chain.stages) > MOST_STAGES_TO_ORDER:
        raise PlanError(
            f"there are {len(chain.stages)} stages, and orders are searched of {MOST_STAGES_TO_ORDER} at most; give the order"
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
