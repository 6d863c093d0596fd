"""The comparison of a device with a group: held against the simulator of schedules at every cut, and against common sense."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import Linear, ProfiledBlock, Rates, pair_profile
from edge_agent.planning.group_choice import Carried, best_of_group, group_plans
from edge_agent.planning.schedules import Layers
from edge_agent.planning.schedules.flow import play, run_slices, sliced
from shared.errors import PlanError
from shared.slicing import slice_count
from tests.support.planning.cases import small_profile

SECONDS = st.floats(0.001, 2.0)
BYTES = st.floats(0.0, 5e6)
RATE = st.floats(1e5, 1e9)


@st.composite
def profiles(draw):
    """A device and a trainer that were measured at every cut."""
    blocks = draw(st.integers(2, 5))
    edge, cloud = (draw(st.lists(SECONDS, min_size=blocks, max_size=blocks)) for _ in range(2))
    cuts = range(blocks + 1)
    features = [draw(st.floats(1.0, 5e6)) for _ in range(blocks - 1)]
    return pair_profile(
        model="drawn",
        batch_size=draw(st.integers(1, 64)),
        blocks=tuple(ProfiledBlock(f"b{at}", size := draw(BYTES), size) for at in range(blocks)),
        feature_bytes=(None, *features, None),
        gradient_bytes=(None, *features, None),
        edge_seconds=(None, *(sum(edge[:cut]) for cut in cuts[1:])),
        cloud_seconds=(None, *(sum(cloud[cut:]) for cut in cuts[1:])),
        encode=Linear(0.0, 1e-9),
        min_bits=None,
        max_staleness=0,
    )


def split_seconds(profile, rates: Rates, cut: int, members: int) -> float:
    """Seconds of the parts of a step on a cut, one after the other."""
    feature, gradient = 8 * members * profile.feature_bytes[cut], 8 * members * profile.gradient_bytes[cut]
    edge, cloud = profile.workers
    computing = float(edge.at_once[0, cut] + members * cloud.at_once[cut, len(profile)])
    return computing + feature / rates.uplink + gradient / rates.downlink + rates.round_trip_seconds


def played(profile, rates: Rates, cut: int, members: int, whole: bool) -> float:
    """Seconds of a member's step in the simulator of schedules; what it waits for at its cut is a layer without bytes."""
    until = [0.0, *map(float, profile.workers[0].at_once[0, 1 : cut + 1])]
    seconds = [after - before for before, after in pairwise(until)]
    sizes = [round(block.parameter_bytes) for block in profile.blocks[:cut]]
    turn = 0.0 if cut == len(profile) else split_seconds(profile, rates, cut, members) - until[cut]
    layers = Layers(
        "played",
        rates.round_trip_seconds,
        tuple(map(str, range(cut + 1))),
        (*sizes, 0),
        (*(8 * members * size / rates.downlink for size in sizes), 0.0),
        (*(each / 3 for each in seconds), turn / 3),
        (*(2 * each / 3 for each in seconds), 2 * turn / 3),
        (*(8 * members * size / rates.uplink for size in sizes), 0.0),
    )
    slices = sliced(layers, max(1, *layers.bytes)) if whole else run_slices(layers, all_bytes(profile))
    return play(layers, slices, 1, is_run=True).seconds


def of_group(plans):
    """The plans of a group, the one without a cut first."""
    return sorted((one for one in plans if one.members is not None), key=lambda one: -one.blocks_here)


def all_bytes(profile):
    """Bytes of the parameters of all blocks."""
    return round(sum(block.parameter_bytes for block in profile.blocks))


@given(
    profile=profiles(), up=RATE, down=RATE, trip=st.floats(0.0, 0.1), members=st.integers(1, 16), whole=st.booleans()
)
def test_each_way_takes_what_the_simulator_says_at_the_best_cut(profile, up, down, trip, members, whole):
    rates, blocks = Rates(up, down, trip), len(profile)
    plans = group_plans(profile, rates, members, Carried(whole_blocks=whole))
    assert len(plans) == 4
    (alone, group), (split, cut_group) = (
        [
            next(one for one in plans if one.members == count and (one.blocks_here == blocks) == whole_here)
            for count in (None, members)
        ]
        for whole_here in (True, False)
    )
    cuts = range(1, blocks)
    assert alone.seconds_per_step == pytest.approx(float(profile.workers[0].at_once[0, blocks]))
    assert split.seconds_per_step == pytest.approx(min(split_seconds(profile, rates, cut, 1) for cut in cuts))
    # The last block of a model without a cut waits for its own weights, so it is no layer without bytes.
    assert (
        alone.seconds_per_step <= group.seconds_per_step <= played(profile, rates, blocks, members, whole) * (1 + 1e-9)
    )
    assert cut_group.seconds_per_step == pytest.approx(
        min(max(split_seconds(profile, rates, cut, 1), played(profile, rates, cut, members, whole)) for cut in cuts)
    )
    for one in plans:
        assert one.samples_per_second == pytest.approx((one.members or 1) * profile.batch_size / one.seconds_per_step)
    assert plans[0].samples_per_second == max(one.samples_per_second for one in plans)


@given(profile=profiles(), up=RATE, down=RATE, trip=st.floats(0.0, 0.1))
def test_a_group_of_one_is_never_best(profile, up, down, trip):
    assert group_plans(profile, Rates(up, down, trip), 1)[0].members is None


@given(profile=profiles(), rate=RATE, members=st.integers(2, 16))
def test_a_member_is_no_quicker_the_more_there_are(profile, rate, members):
    """But for a message each way: one that has begun is not interrupted for what is needed first, which chance may spare."""
    fewer, more = (of_group(group_plans(profile, Rates(rate, rate), count)) for count in (members - 1, members))
    slice_bytes = max(block.bytes / slice_count(block.parameter_bytes, all_bytes(profile)) for block in profile.blocks)
    both_ways_seconds = 2 * members * 8 * slice_bytes / rate
    for before, after in zip(fewer, more, strict=True):
        assert before.seconds_per_step <= (after.seconds_per_step + both_ways_seconds) * (1 + 1e-9)


@given(profile=profiles(), up=RATE, down=RATE, members=st.integers(1, 16), data=st.data())
def test_what_is_not_permitted_is_no_way_and_the_best_of_the_others_counts(profile, up, down, members, data):
    rates, blocks = Rates(up, down), len(profile)
    permitted = data.draw(st.sets(st.integers(1, blocks), min_size=1))
    plans = group_plans(profile, rates, members, permitted=permitted)
    assert {one.blocks_here for one in plans} <= permitted
    each = [best_of_group(group_plans(profile, rates, members, permitted={cut})) for cut in permitted]
    assert best_of_group(plans).samples_per_second == max(one.samples_per_second for one in each)


@given(profile=profiles(), rate=RATE, members=st.integers(1, 16), share=st.floats(0.01, 1.0))
def test_fewer_bytes_each_way_are_as_good_as_faster_links(profile, rate, members, share):
    blocks = len(profile)
    coded = group_plans(profile, Rates(rate, rate), members, Carried(push=share, pull=share), {blocks})
    faster = group_plans(profile, Rates(rate / share, rate / share), members, permitted={blocks})
    assert best_of_group(coded).seconds_per_step == pytest.approx(best_of_group(faster).seconds_per_step)


def test_what_a_device_cannot_run_is_no_way():
    weak = small_profile(
        blocks=tuple(ProfiledBlock(f"b{at}", 1e6, 1e5) for at in range(4)), edge_seconds=(None, 1.0, 2.0, None, None)
    )
    plans = group_plans(weak, Rates(8e6, 8e6), 3)
    assert {one.members for one in plans} == {None, 3}
    assert all(one.blocks_here in (1, 2) for one in plans)


def test_what_cannot_be_compared_is_refused():
    rates, profile = Rates(8e6, 8e6), small_profile()
    with pytest.raises(PlanError, match="the group has 0 members; it must have 1 to 1024"):
        group_plans(profile, rates, 0)
    with pytest.raises(PlanError, match="parameter_bytes of block 'b0'"):
        group_plans(profile, rates, 2)
    nothing = replace(profile.workers[0], replayed=profile.workers[0].replayed * math.nan)
    with pytest.raises(
        PlanError, match="no time of the device for all blocks, nor of both workers for any cut that may be"
    ):
        group_plans(profile.with_worker(nothing), rates, 2)
