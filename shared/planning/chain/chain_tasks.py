"""A partition of a chain as a placement, and its step as tasks: the input of the cost model and simulator of any placement."""

from itertools import pairwise

from shared.placement import (
    BlockFacts,
    Link,
    ModelFacts,
    Placement,
)
from shared.planning.chain.costs import Partition
from shared.planning.layout import stacked
from shared.planning.profile import Profile
from shared.planning.profile_operations import ProfileOperations
from shared.planning.rates import Rates
from shared.planning.tasks import StepTasks, step_tasks


def chain_placement(chain: Profile, partition: Partition, staleness: int) -> Placement:
    """Return the placement of a partition. Its workers are the stages."""
    return stacked(chain, partition.cuts, staleness, partition.bits).placement()


def chain_tasks(chain: Profile, partition: Partition, staleness: int) -> StepTasks:
    """Return the tasks of a step. PlanError if any of them was not measured."""
    layout = stacked(chain, partition.cuts, staleness, partition.bits)
    placement = layout.placement()
    workers = placement.workers
    rates = {Link(*hop): chain.rates(*hop) for hop in pairwise(workers)}
    if len(workers) > 2:
        # Labels go straight from the first to the last stage. They take almost no time to send, and travel as far as
        # the features.
        travel_seconds = sum(link.round_trip_seconds for link in rates.values())
        rates[Link(workers[0], workers[-1])] = Rates(1.0, 1.0, travel_seconds)
    model = ModelFacts(tuple(BlockFacts(block.name) for block in chain.blocks))
    return step_tasks(placement, model, ProfileOperations(chain, layout), rates, replays=False)
