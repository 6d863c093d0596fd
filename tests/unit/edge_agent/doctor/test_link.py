"""The doctor's judgement of the link: its round trip and its rates."""

import grpc
import pytest

from edge_agent.doctor import link
from edge_agent.doctor.finding import Status
from edge_agent.doctor.link import (
    LONG_ROUND_TRIP_SECONDS,
    NARROW_BITS_PER_SECOND,
    judge_rate,
    judge_round_trip,
)
from shared.client import link_measurement as link_measuring
from shared.client.link_measurement import SIZES_BYTES
from shared.client.probing import ProbeAnswer

OK, ADVICE, FIX, SKIPPED = Status.OK, Status.ADVICE, Status.FIX, Status.SKIPPED
Code = grpc.StatusCode


def test_a_round_trip_is_long_from_its_bound_on():
    assert judge_round_trip(LONG_ROUND_TRIP_SECONDS * 0.99).status is OK
    assert judge_round_trip(LONG_ROUND_TRIP_SECONDS).status is ADVICE


@pytest.mark.parametrize(
    ("direction", "key"), [("uplink", "deployment.codec"), ("downlink", "deployment.downlink_codec")]
)
def test_a_link_is_narrow_below_its_bound(direction, key):
    assert judge_rate(direction, NARROW_BITS_PER_SECOND).status is OK
    narrow = judge_rate(direction, NARROW_BITS_PER_SECOND * 0.99)
    assert narrow.status is ADVICE
    assert f'{key} = "' in narrow.remedy


def test_a_rate_is_shown_in_three_digits_and_not_beyond_what_can_be_told():
    assert judge_rate("uplink", 94.36e6).result == "at least 94.4 Mbit/s"
    assert judge_rate("uplink", 999e6).result == "at least 999 Mbit/s"
    assert judge_rate("uplink", 1e9).result == "1 Gbit/s or more"


class OneAnswer:
    """A trainer that gives the same answer to every question, after a delay on a clock of its own."""

    def __init__(self, answer, seconds_per_byte, clock):
        self._answer, self._seconds_per_byte, self._clock = answer, seconds_per_byte, clock
        self.asked_bytes = []

    async def ask(self, _method, request):
        self.asked_bytes.append(request.ByteSize())
        self._clock.now += request.ByteSize() * self._seconds_per_byte
        return self._answer


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(link_measuring, "time", made)
    return made


async def test_the_uplink_is_measured_with_ever_more_until_it_takes_a_while(clock):
    slow = OneAnswer(ProbeAnswer(Code.NOT_FOUND), 8 / 1e6, clock)
    assert (await link.check_uplink(slow, 0.0)).result == "at least 1 Mbit/s"
    assert len(slow.asked_bytes) == 2, "64 KiB took more than half a second"
    fast = OneAnswer(ProbeAnswer(Code.NOT_FOUND), 8 / 100e6, clock)
    assert (await link.check_uplink(fast, 0.0)).result == "at least 100 Mbit/s"
    assert len(fast.asked_bytes) == len(SIZES_BYTES)
    assert sum(fast.asked_bytes) < 6e6


async def test_an_uplink_that_cannot_be_measured_is_no_fault_of_the_device(clock):
    refused = await link.check_uplink(
        OneAnswer(ProbeAnswer(Code.RESOURCE_EXHAUSTED, "too many calls"), 0.0, clock), 0.0
    )
    assert (refused.status, refused.result) == (SKIPPED, "not measured: too many calls")
    late = await link.check_uplink(OneAnswer(ProbeAnswer(Code.DEADLINE_EXCEEDED), 10 / 65536, clock), 0.0)
    assert (late.status, late.result) == (ADVICE, "less than 0.0524 Mbit/s")


class Answers:
    """A trainer that sends so many of the answers that a stream asks for, each of 1,000 bytes and 10 ms."""

    def __init__(self, sent, end, clock):
        self._sent, self._end, self._clock = sent, end, clock

    async def repeat(self, _method, _request, times):
        sent = min(times, self._sent)
        self._clock.now += 0.01 * sent
        return 1000 * sent, ProbeAnswer(Code.OK) if sent == times else self._end


async def test_a_downlink_shows_the_bytes_that_came_in_time(clock):
    whole = await link.check_downlink(Answers(10**9, None, clock), 0.0)
    late = await link.check_downlink(Answers(40, ProbeAnswer(Code.DEADLINE_EXCEEDED), clock), 0.0)
    assert whole.result == late.result == "at least 0.8 Mbit/s"


@pytest.mark.parametrize("sent", [0, 1, 40])
async def test_a_downlink_whose_trainer_goes_away_has_no_rate(clock, sent):
    gone = await link.check_downlink(Answers(sent, ProbeAnswer(Code.UNAVAILABLE, "it is gone"), clock), 0.0)
    assert (gone.status, gone.result) == (SKIPPED, "not measured: it is gone")


async def test_a_downlink_of_which_nothing_comes_in_time_has_no_rate(clock):
    class LaterNothing(Answers):
        async def repeat(self, method, request, times):
            return await super().repeat(method, request, times) if times == 1 else (0, self._end)

    late = await link.check_downlink(LaterNothing(40, ProbeAnswer(Code.DEADLINE_EXCEEDED, "late"), clock), 0.0)
    assert (late.status, late.result) == (SKIPPED, "not measured: late")
