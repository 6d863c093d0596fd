"""Seconds of whole batches, of the times of blocks by samples."""

from dataclasses import replace
from itertools import accumulate

import numpy as np

from edge_agent.planning.measurements import Floats, Linear
from edge_agent.planning.operation_costs import BlockSeconds
from edge_agent.planning.profile.profile import MessageSeconds, Profile, WorkerProfile, no_times
from shared.errors import PlanError


def with_batch_size(profile: Profile, batch_size: int) -> Profile:
    """Return a profile that has costs by samples for other batches. PlanError for an empty batch."""
    if batch_size < 1:
        raise PlanError(f"the batch size is {batch_size}; it must be 1 or more")
    costs = profile.by_samples
    assert costs is not None
    whole = tuple(size * batch_size for size in costs.feature_bytes)
    return replace(
        profile,
        batch_size=batch_size,
        feature_bytes=whole,
        gradient_bytes=whole,
        workers=tuple(
            _whole_batches(name, each, batch_size, costs.message_at(name)) for name, each in costs.blocks.items()
        ),
    )


def _whole_batches(name: str, blocks: tuple[BlockSeconds, ...], batch_size: int, message: Linear) -> WorkerProfile:
    """Return the same as seconds of runs of blocks on whole batches. message: each that the worker sends or receives."""
    forward, rest = (
        np.array([0.0, *accumulate(seconds)])
        for seconds in (
            [block.forward.at(batch_size) for block in blocks],
            [block.forward.at(batch_size) + block.backward.at(batch_size) + block.update for block in blocks],
        )
    )
    serial = _runs(rest)
    replayed = serial + _runs(forward)
    replayed[:, -1] = serial[:, -1]  # after the last block the backward pass follows at once
    # A link that is used carries a feature and an error gradient in a step. The next step waits for what the second costs.
    both = MessageSeconds(2 * message.seconds, message.seconds_per_unit, message.seconds)
    return WorkerProfile(name, replayed, serial, both)


def _runs(before: Floats) -> Floats:
    """Return the seconds of the blocks [i, j) at [i, j], of those of the blocks [0, c). NaN where there is none."""
    table = no_times(len(before) - 1)
    first, stop = np.triu_indices(len(before), 1)
    table[first, stop] = before[stop] - before[first]
    return table
