"""The step of a chain as tasks: the input of the cost model and simulator of any placement."""

from itertools import pairwise

from shared.placement import BlockFacts, Link, ModelFacts
from shared.planning.layout import Layout
from shared.planning.profile import Profile
from shared.planning.profile_operations import ProfileOperations
from shared.planning.rates import Rates
from shared.planning.tasks import StepTasks, step_tasks


def chain_tasks(chain: Profile, layout: Layout) -> StepTasks:
    """Return the tasks of a step. PlanError if any of them was not measured."""
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
