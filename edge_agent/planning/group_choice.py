"""Choice between one device and a group of such devices: samples a second of each, alone or on a cut.

K = 0, and everything is exact but for codecs that are named. Members are alike and in step. They share the trainer's link and
its computing, so what crosses, and what the trainer computes for one of them, takes as many times as long. Numbers only.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from edge_agent.planning.cost import Conditions, conditions_of
from edge_agent.planning.families.pair import pairs
from edge_agent.planning.layout import stacked
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.plan import Plan
from edge_agent.planning.profile import Profile
from edge_agent.planning.rates import Rates
from edge_agent.planning.schedules import Layers, check_members, layers_of, run_seconds
from shared.errors import PlanError

TURN = "turn"
"""Name of what a member waits for at its cut, as a layer without parameters."""


class Carried(NamedTuple):
    """Sizes of what travels, as codecs and the recipe leave them."""

    bits: int = FLOAT32_BITS
    """Bits of a number of a feature."""
    push: float = 1.0
    """Bytes of a gradient of parameters, as a part of what it has as it is."""
    pull: float = 1.0
    """The same of weights."""
    whole_blocks: bool = False
    """True where no block goes in slices, because its update needs all of its gradient."""


EXACT = Carried()


def best_of_group(plans: Sequence[Plan]) -> Plan:
    """Return the best plan of a group among those of `group_plans`."""
    return next(plan for plan in plans if plan.members is not None)


def group_plans(
    profile: Profile, rates: Rates, members: int, carried: Carried = EXACT, permitted: Collection[int] | None = None
) -> list[Plan]:
    """Return a device alone, on its best cut, a group of so many without a cut, and on its best cut; those that were measured.

    The one of most samples a second comes first; of equals the one that is named first here, so a group has to be faster.
    rates: of the trainer's link, which a device alone has for itself.

    permitted: numbers of blocks that a device may have; any if left out. PlanError for a profile that leaves no way, or does
    not know the bytes of parameters, and a number of members that is out of range.
    """
    check_members(members)
    if len(profile.workers) != 2:
        raise PlanError(
            f"a group is planned with a profile of a device and one trainer; this one has {len(profile.workers)} workers"
        )
    blocks = len(profile)
    may_have = range(1, blocks + 1) if permitted is None else permitted
    alone, shared = _conditions(profile, rates, 1), _conditions(profile, rates, members)
    each = {cut: _split_seconds(profile, alone, cut, carried) for cut in range(1, blocks) if cut in may_have}
    split = {cut: seconds for cut, seconds in each.items() if math.isfinite(seconds)}
    without = _alone_seconds(profile, blocks)
    is_measured = math.isfinite(without) and blocks in may_have

    def exchanged(cut: int) -> Layers:
        return layers_of(profile, rates, cut).among(members).carried(carried.push, carried.pull)

    all_bytes = round(sum(block.parameter_bytes or 0.0 for block in profile.blocks))

    def group_seconds(layers: Layers) -> float:
        return run_seconds(layers, all_bytes, whole_blocks=carried.whole_blocks)

    def member_seconds(cut: int) -> float:
        turn = _split_seconds(profile, shared, cut, carried) - _alone_seconds(profile, cut)
        # Sums round, and no member is quicker than the same device without a group.
        return max(split[cut], group_seconds(_with_turn(exchanged(cut), max(0.0, turn))))

    of_group = {cut: member_seconds(cut) for cut in split}

    def way(count: int | None, cut: int, seconds: float) -> Plan:
        if seconds <= 0.0:
            raise PlanError("a step of the profile takes no time at all; profile a model that computes")
        name = "one device" if count is None else f"group of {count}"
        return Plan(stacked(profile, (cut,), 0, (carried.bits,)), seconds, name=name, members=count)

    def all_ways() -> Iterator[Plan]:
        if is_measured:
            yield way(None, blocks, without)
        if split:
            best = min(split, key=split.__getitem__)
            yield way(None, best, split[best])
        if is_measured:
            yield way(members, blocks, max(without, group_seconds(exchanged(blocks))))
        if split:
            best = min(split, key=of_group.__getitem__)
            yield way(members, best, of_group[best])

    if not (found := tuple(all_ways())):
        raise PlanError(
            "the profile has no time of the device for all blocks, nor of both workers for any cut that may be; measure it"
        )
    return sorted(found, key=lambda plan: -plan.samples_per_second)


def _with_turn(layers: Layers, seconds: float) -> Layers:
    """Return the layers of a member with a cut, and what it waits for there.

    From its last block on it waits for the features to go up, for the trainer, and for the error gradients to come: nothing of
    the exchange travels meanwhile, so this is a layer of computing behind its own.
    """
    return replace(
        layers,
        names=(*layers.names, TURN),
        bytes=(*layers.bytes, 0),
        pull_seconds=(*layers.pull_seconds, 0.0),
        forward_seconds=(*layers.forward_seconds, 0.0),
        backward_seconds=(*layers.backward_seconds, seconds),
        push_seconds=(*layers.push_seconds, 0.0),
    )


def _alone_seconds(profile: Profile, cut: int) -> float:
    """Seconds that the device computes for the blocks before a cut; NaN if that was not measured."""
    return float(profile.workers[0].at_once[0, cut])


def _split_seconds(profile: Profile, at: Conditions, cut: int, carried: Carried) -> float:
    """Seconds of a step on a cut at K = 0; NaN if that was not measured."""
    column = np.array([cut]), np.array([carried.bits]), np.array([0])
    return float(pairs(profile, *column).loads.seconds(at)[0])


def _conditions(profile: Profile, rates: Rates, members: int) -> Conditions:
    """The link and the trainer as so many members have them."""
    near, far = profile.names
    shared = replace(rates, uplink=rates.uplink / members, downlink=rates.downlink / members)
    at = conditions_of(profile, {(near, far): shared})
    return replace(at, factors=np.array([1.0, float(members)]))
