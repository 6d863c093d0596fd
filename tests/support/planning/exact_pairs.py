"""Costs of deployments of two workers in exact arithmetic, by the definitions one by one."""

from dataclasses import replace
from fractions import Fraction

import pytest

from edge_agent.planning import Linear, Profile, ProfiledBlock, SearchSpace, pair_profile
from tests.support.planning.cases import asked, measured, pair


def exact_costs(profile, link, space, horizon, from_cut):
    """Compute the seconds of the horizon, migration included, for every permitted deployment, by the definitions one by one."""
    up, down = Fraction(link.uplink), Fraction(link.downlink)
    last = len(profile.blocks)
    costs = {}
    for cut in range(1, last + 1 if space.allow_edge_only else last):
        for bits in [max(space.bits)] if cut == last else space.bits:
            if exact_phases(profile, cut, bits, up, down, serial=False) is None:
                continue
            moved = Fraction(0)
            if from_cut is not None:
                crossing = profile.blocks[min(cut, from_cut) : max(cut, from_cut)]
                moved = sum((8 * Fraction(block.bytes) for block in crossing), Fraction(0)) / (
                    up if cut < from_cut else down
                )
                moved += Fraction(link.round_trip_seconds) if cut != from_cut else 0
            for staleness in range(profile.max_staleness + 1) if space.staleness is None else [space.staleness]:
                *phases, busy = exact_phases(profile, cut, bits, up, down, serial=staleness == 0)
                away = Fraction(link.round_trip_seconds) if cut < last else Fraction(0)
                longest, total = max(*phases, busy), sum(phases) + away
                groups = -(-horizon // (staleness + 1))
                waiting = max(Fraction(0), total - (staleness + 1) * longest)
                costs[pair(cut, staleness, bits, profile)] = (
                    (horizon - 1) * longest + total + (groups - 1) * waiting + moved
                )
    return costs


def exact_phases(profile, cut, bits, up, down, *, serial):
    edge, cloud = measured(profile, cut, serial=serial)
    if cut == len(profile.blocks):
        return None if edge is None else [Fraction(edge), Fraction(0), Fraction(0), Fraction(0), Fraction(edge)]
    feature, gradient = profile.feature_bytes[cut], profile.gradient_bytes[cut]
    if None in (edge, feature, gradient, cloud) or (bits < 32 and profile.encode is None):
        return None
    if profile.min_bits is not None and (profile.min_bits[cut] is None or bits < profile.min_bits[cut]):
        return None
    carried = Fraction(feature) * bits / 32 + Fraction(gradient)
    message = profile.workers[0].message
    late = Fraction(message.seconds_per_byte) * carried + Fraction(message.seconds)
    overhead = Fraction(message.waited_seconds) if serial else late
    encode = Fraction(0)
    if bits < 32:
        encode = Fraction(profile.encode.seconds_per_unit) * Fraction(feature) + Fraction(profile.encode.seconds)
    return [
        Fraction(edge) + encode + overhead,
        8 * Fraction(feature) * bits / 32 / up,
        Fraction(cloud),
        8 * Fraction(gradient) / down,
        Fraction(edge) + encode + max(overhead, late),
    ]


def flat_profile(**changes) -> Profile:
    """Build five equal blocks, in numbers that binary fractions hold exactly."""
    same = (1.0,) * 6
    fields = {
        "feature_bytes": same,
        "gradient_bytes": same,
        "edge_seconds": same,
        "cloud_seconds": same,
        "max_staleness": 7,
    }
    fields |= {"encode": Linear(0.0, 0.0), "min_bits": None}
    return pair_profile("flat", 1, tuple(ProfiledBlock(str(i), 0.0) for i in range(5)), **(fields | changes))


def check_costs_as_said(planner, profile, link, horizon, from_cut):
    """Check that a planner says the exact costs of the deployment that it chooses."""
    profile = replace(profile, min_bits=None)
    plan = planner(*asked(profile, link, None, horizon, from_cut))
    only = SearchSpace(plan.layout.bits or (32,), plan.layout.staleness, (plan.layout.tiles[0].stop,))
    costs = exact_costs(profile, link, only, horizon, from_cut)
    assert plan.seconds_per_step * horizon + plan.migration_seconds == pytest.approx(
        float(costs[plan.layout]), rel=1e-9
    )
