"""A channel: what it keeps to be sent again, and which announcements it agrees to."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.bounds import MOST_RATE_DROPS
from shared.codec import FeedbackMode, codec_by_name
from shared.errors import ProtocolError
from shared.execution.feedback import Feedback
from shared.execution.step_in_flight import Parcel
from shared.placement import ArrivalJudge, Cargo, Crossing, Route, Rows, StepPlan, Window, two_workers, unnamed_blocks
from shared.runtime.channel import Channel
from shared.runtime.forms import Forms
from shared.tensor_wire import to_wire
from shared.transport.stream.framing import WireTensor, chunks, key_of
from tests.support.channels import STALENESS, channels
from tests.support.placed import built, chain_of, recipe
from tests.support.virtual import InlineWorker

WHOLE = Rows(0, 4)
steps = st.integers(0, 40)


def leaving(first_step: int = 0) -> Channel:
    return channels([Crossing("edge", "near", Cargo.FEATURE, 2, WHOLE)], first_step)[0]


def kept(first: int, stop: int) -> Channel:
    """Return a channel with the parcels of these steps."""
    channel = leaving(first)
    for step in range(first, stop):
        channel.keep(Parcel(step, 4, channel.crossing, ()))
    return channel


@given(steps, st.integers(0, 20), steps, steps)
def test_parcels_that_a_peer_lacks_are_kept_until_they_are_settled(first, count, settled, position):
    stop = first + count
    channel = kept(first, stop)
    channel.forget_before(settled)
    lacking = range(position, stop)
    there = all(step >= max(first, settled) for step in lacking)
    assert channel.covers(position) == (there and position <= stop)
    if channel.covers(position):
        assert [channel.parcels[step].step for step in lacking] == list(lacking)


def test_a_position_as_far_away_as_a_number_can_be_is_judged_at_once():
    channel = leaving()
    channel.keep(Parcel(2**63, 4, channel.crossing, ()))
    assert not channel.covers(0)


def test_a_request_after_the_last_parcel_is_not_covered():
    channel = leaving(3)
    assert channel.covers(3)
    assert not channel.covers(4)


def test_forgetting_leaves_nothing():
    channel = kept(4, 5)
    channel.forget_before(5)
    assert not channel.parcels
    assert channel.first_waiting() is None
    assert channel.covers(5)


def test_what_waits_is_sent_in_order_and_again_from_where_the_peer_stands():
    channel = kept(5, 8)
    for stands, waiting in ((5, 3), (7, 1), (6, 2)):
        channel.stream_step = stands
        assert channel.waiting == waiting
        assert channel.first_waiting() is channel.parcels[stands]


def coming(slots: tuple[int, ...] = (0,)) -> Channel:
    return channels([Crossing("edge", "near", Cargo.LABEL, 4, WHOLE, slots)], 5, "near")[0]


def sent(channel: Channel, step: int, slot: int = 0, samples: int = 4) -> WireTensor:
    """Return a tensor of the peer."""
    encoded = codec_by_name("raw").encode(torch.zeros(samples, dtype=torch.int64))
    return to_wire(encoded, channel.form.key(step, slot), channel.form.version, samples)


def announce(channel: Channel, tensor: WireTensor) -> int:
    frame = next(chunks(tensor, 1 << 20))[0]
    return channel.accept(frame, key_of(frame))


def test_more_falls_of_the_rate_than_a_run_can_have_are_refused():
    channel = coming()
    tensor = sent(channel, 5)
    with pytest.raises(ProtocolError, match=f"{MOST_RATE_DROPS} is most"):
        announce(channel, replace(tensor, rate_drops=MOST_RATE_DROPS + 1))
    announce(channel, replace(tensor, rate_drops=MOST_RATE_DROPS))
    parcel, _, _ = channel.add(replace(tensor, rate_drops=7))
    assert parcel.rate_drops == 7


@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan])
def test_labels_that_count_no_number_are_refused(wrong):
    channel = coming()
    tensor = sent(channel, 5)
    with pytest.raises(ProtocolError, match="which is no number of them"):
        announce(channel, replace(tensor, label_count=wrong))
    announce(channel, replace(tensor, label_count=2.5))
    parcel, _, _ = channel.add(replace(tensor, label_count=2.5))
    assert parcel.label_count == 2.5


@pytest.mark.parametrize("wrong", [4, 6, 2**62])
def test_steps_are_announced_one_after_the_other(wrong):
    channel = coming()
    with pytest.raises(ProtocolError, match=f"label 4 of step {wrong} came from 'edge'; step 5 is next"):
        announce(channel, sent(channel, wrong))
    for step in range(5, 5 + STALENESS + 1):
        assert announce(channel, sent(channel, step)) == step
    with pytest.raises(ProtocolError, match=f"step {5 + STALENESS} is the latest"):
        announce(channel, sent(channel, 5 + STALENESS + 1))


def test_the_tensors_of_a_step_are_announced_in_their_order_and_of_one_batch():
    channel = coming((0, 1))
    announce(channel, sent(channel, 5, samples=3))
    for wrong, says in ((sent(channel, 5, samples=3), "came where"), (sent(channel, 5, 1), "its batch has 3")):
        with pytest.raises(ProtocolError, match=says):
            announce(channel, wrong)
    announce(channel, sent(channel, 5, 1, samples=3))
    assert channel.stream_step == 6


@pytest.mark.parametrize("brought", [0, 1, 2])
def test_a_step_that_a_lost_stream_has_not_brought_as_a_whole_comes_again(brought):
    channel = coming((0, 1))
    for slot in range(brought):
        announce(channel, sent(channel, 5, slot))
        channel.add(sent(channel, 5, slot))
    channel.begin_again()
    assert channel.next_step == 5
    for slot in (0, 1):
        assert announce(channel, sent(channel, 5, slot)) == 5
        parcel, raw_bytes, is_whole = channel.add(sent(channel, 5, slot))
        assert (raw_bytes, is_whole) == (32, slot == 1)
    assert parcel.raw_bytes == 64


async def test_a_load_is_there_once_all_its_tensors_are():
    channel = coming()
    announce(channel, sent(channel, 5))
    parcel, _, is_whole = channel.add(sent(channel, 5))
    assert is_whole
    assert channel.next_step == 5, "it may have to come again"
    channel.end(parcel, await channel.decode(parcel))
    assert channel.next_step == 6
    (labels,) = parcel.load
    assert torch.equal(labels, torch.zeros(4, dtype=torch.int64))


class LeftAlone(InlineWorker):
    """Makes each call, and its caller goes away meanwhile, as where a stream is lost."""

    async def run(self, function, *args, **kwargs):
        function(*args, **kwargs)
        raise asyncio.CancelledError


async def test_a_tensor_is_given_up_once_it_is_encoded_also_if_nobody_waits_for_that_any_more():
    placement = replace(two_workers("edge", "near", 2, 4, 4), codecs={Route("edge", "near", Cargo.FEATURE): "uniform8"})
    crossing = Crossing("edge", "near", Cargo.FEATURE, 2, WHOLE)
    form = Forms(placement, chain_of(built("dropping")), lambda _labels: None, recipe("sgd")).of(crossing)
    judge = ArrivalJudge(Window(StepPlan(placement, unnamed_blocks(4)), "edge"))
    channel = Channel(form, judge, LeftAlone(), Feedback(FeedbackMode.OFF, (), ()))
    sent_feature = torch.ones(4, form.quick_bytes)
    parcel = Parcel(0, 4, crossing, (sent_feature,))
    with pytest.raises(asyncio.CancelledError):
        await channel.encode(parcel)
    assert parcel.load == (), "it would be kept until the peer has it"
    before = parcel.encoded
    await channel.encode(parcel)
    assert parcel.encoded is before, "it is encoded once"
    assert torch.equal(form.decode(before)[0], sent_feature)
