"""Layers from a profile: the blocks of a model whose whole step the device computes, over a link of some rates."""

from math import isnan

from edge_agent.planning.profile import Profile
from edge_agent.planning.profile_operations import FORWARD_SHARE
from edge_agent.planning.rates import Rates
from edge_agent.planning.schedules.layers import Layers
from shared.errors import PlanError

BITS_PER_BYTE = 8


def layers_of(profile: Profile, rates: Rates, cut: int | None = None) -> Layers:
    """Return the layers of a profile's first worker, by what its blocks take at K = 0: all, or those before a cut.

    Blocks that were only measured together are one layer. A message costs the round trip, and half of what the device takes for
    the messages of a step. PlanError if the seconds until the cut, or the bytes of parameters, are unknown.
    """
    worker, stop = profile.workers[0], len(profile) if cut is None else cut
    runs = _measured_runs([float(seconds) for seconds in worker.at_once[0][: stop + 1]])
    if not runs or runs[-1][1] != stop:
        which = f"all {stop} blocks" if stop == len(profile) else f"the first {stop} blocks"
        raise PlanError(
            f"the profile has no time of {which} on {worker.name!r}; a member of a group runs them all, so profile a device "
            "that can"
        )
    blocks = [profile.blocks[first:last] for first, last, _ in runs]
    sizes = []
    for block in profile.blocks[:stop]:
        if block.parameter_bytes is None:
            raise PlanError(
                f"the profile does not say the parameter_bytes of block {block.name!r}; profile again with `edge-agent profile`"
            )
    sizes = [round(sum(block.parameter_bytes or 0.0 for block in run)) for run in blocks]
    seconds = [seconds for _, _, seconds in runs]
    return Layers(
        model=profile.model,
        message_seconds=rates.round_trip_seconds + worker.message.seconds / 2,
        names=tuple("+".join(block.name for block in run) for run in blocks),
        bytes=tuple(sizes),
        pull_seconds=tuple(BITS_PER_BYTE * size / rates.downlink for size in sizes),
        forward_seconds=tuple(FORWARD_SHARE * each for each in seconds),
        backward_seconds=tuple((1.0 - FORWARD_SHARE) * each for each in seconds),
        push_seconds=tuple(BITS_PER_BYTE * size / rates.uplink for size in sizes),
    )


def _measured_runs(until: list[float]) -> list[tuple[int, int, float]]:
    """Return the runs of blocks between the cuts that were measured, and the seconds of each. until: of the blocks before
    each cut."""
    runs, first, before = [], 0, 0.0
    for stop, seconds in enumerate(until[1:], start=1):
        if not isnan(seconds):
            runs.append((first, stop, max(0.0, seconds - before)))
            first, before = stop, max(before, seconds)
    return runs
