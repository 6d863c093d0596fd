"""The cost of a message at its ends: found by training a few real steps of a divided batch.

Blocks and links take less alone than in a step, where every message wakes a process, and is packed, checked and read.
"""

from collections.abc import Mapping
from dataclasses import replace

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.building import Experiment
from edge_agent.profiling.trial import placed_seconds
from shared.client.trainer import TrainerClient
from shared.placement import AGENT, Placement, Rows, Tile
from shared.planning import Profile, Simulated, conditions_of
from shared.planning.operation_costs import Linear

_HALVINGS = 30
"""Halvings of the range in which a cost lies."""


async def measured_message(
    clients: Mapping[str, TrainerClient], experiment: Experiment, profile: Profile, threads: AgentThreads, steps: int
) -> float:
    """Return the seconds of a message at its sender and at its receiver, each; 0 where no two trainers can share a block.

    experiment: of its own, which is used up; it begins with the placement that is tried. profile: without that cost. Raises
    IsthmusError: ConfigError or DataError for a division that is not permitted.
    """
    tried = divided(experiment, profile.names)
    if tried is None:
        return 0.0
    experiment.begin_at(experiment.completed(tried))
    measured = await placed_seconds(clients, experiment, threads, steps)
    return message_seconds(profile, tried, measured)


def message_seconds(profile: Profile, placement: Placement, step_seconds: float) -> float:
    """Return the cost of a message with which the simulator has a step under this placement take so long; 0 where it takes
    longer without."""
    costs = profile.by_samples
    assert costs is not None

    def simulated(seconds: float) -> float:
        changed = replace(profile, by_samples=replace(costs, overhead=Linear(seconds)))
        return Simulated(changed, conditions_of(changed)).seconds(placement)

    least, most = 0.0, step_seconds
    if simulated(least) >= step_seconds:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        if simulated(middle) < step_seconds:
            least = middle
        else:
            most = middle
    return least


def divided(experiment: Experiment, names: tuple[str, ...]) -> Placement | None:
    """Return a placement in which both trainers run all blocks but the device's and the last, each on half of a batch.

    None where there is no such block, or no half that it can compute on.
    """
    near, far = names[1:]
    facts, batch, before = experiment.facts.blocks, experiment.batch_size, experiment.chain.first_boundary
    last, half = len(facts) - 1, experiment.batch_size // 2
    shared = range(before, last)
    if not shared or any(facts[block].min_samples > half for block in shared) or not half:
        return None
    whole = Rows(0, batch)
    tiles = (
        Tile(AGENT, 0, before, whole),
        Tile(near, before, last, Rows(0, half)),
        Tile(far, before, last, Rows(half, batch)),
        Tile(far, last, last + 1, whole),
    )
    owners = {block: far for block in shared if facts[block].changes}
    return replace(experiment.placement, workers=names, tiles=tiles, owners=owners, codecs={}, staleness=0)
