"""A promise to a newcomer holds for some seconds and is made once, and no claim of a step goes beyond what can be promised."""

import pytest

from cloud_trainer.groups import newcomers
from cloud_trainer.groups.newcomers import FIRST_REST, LONGEST_REST, PROMISE_SECONDS, Newcomers
from cloud_trainer.groups.refusals import NotNowError
from shared.errors import ConfigError, ProtocolError

STEPS = 20


class Agreed:
    steps = STEPS
    staleness = 1


class Waiting:
    """A group at a step, that waits for whom it is told to."""

    agreement = Agreed()

    def __init__(self, step):
        self.step, self.ranks, self.withdrawn, self.is_done = step, {0: 0}, [], False

    async def on_thread(self, what, *given):
        return getattr(self, what.__name__)(*given)

    def promise(self, rank, _step):
        return self.ranks.get(rank, self.step)

    def join(self, rank, step):
        if step < self.step:
            return None
        self.ranks[rank] = step
        return []

    def withdraw(self, rank):
        self.withdrawn.append(rank)
        return []


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(newcomers, "time", clock)
    return clock


async def test_a_promise_lapses_after_its_time_and_asking_again_makes_it_no_longer(clock):
    waiting, coming = Waiting(5), Newcomers("line")
    assert coming.seconds_left(clock.now) is None
    assert await coming.promise(waiting, 2, 5, "ours") == 5
    clock.now += PROMISE_SECONDS - 1
    assert await coming.promise(waiting, 2, 5, "ours") == 5
    assert coming.seconds_left(clock.now) == 1.0
    await coming.lapse(waiting, clock.now)
    assert waiting.withdrawn == []
    await coming.lapse(waiting, clock.now + 1)
    assert (waiting.withdrawn, coming.seconds_left(clock.now)) == ([2], None)


async def test_a_promise_lapses_with_the_session_and_not_once_the_rank_has_joined(clock):
    waiting, coming = Waiting(5), Newcomers("line")
    await coming.promise(waiting, 2, 5, "ours")
    assert coming.lose(2)
    await coming.lapse(waiting, clock.now)
    assert waiting.withdrawn == [2]
    await coming.promise(waiting, 3, 5, "theirs")
    await coming.join(waiting, 3, 6)
    assert not coming.lose(3)
    assert coming.seconds_left(clock.now) is None


async def test_a_group_without_a_step_left_has_none_for_a_newcomer():
    waiting = Waiting(STEPS)
    with pytest.raises(
        ConfigError, match="group 'line' does 20 steps, of which none is left that rank 2 could take part in"
    ):
        await Newcomers("line").promise(waiting, 2, STEPS, "ours")
    assert waiting.withdrawn == [2]


@pytest.mark.parametrize(("step", "claimed"), [(5, 9), (5, 2**40), (STEPS - 1, STEPS)])
async def test_a_step_that_no_trainer_can_have_promised_is_refused(step, claimed):
    with pytest.raises(ProtocolError, match="and nobody joins after step"):
        await Newcomers("line").join(Waiting(step), 2, claimed)


async def test_a_step_that_has_begun_can_be_asked_for_again():
    with pytest.raises(NotNowError, match="goes on without rank 2 since step 4"):
        await Newcomers("line").join(Waiting(5), 2, 4)


async def test_a_rank_that_has_joined_joins_there_again_however_far_the_group_went_back():
    waiting = Waiting(5)
    waiting.ranks[2] = 15
    assert await Newcomers("line").join(waiting, 2, 15) == []


async def test_a_subject_that_lets_promises_lapse_costs_its_group_a_few_percent_of_the_time(clock):
    waiting, coming, began, held = Waiting(5), Newcomers("line"), clock.now, 0.0
    while clock.now < began + 3600:
        try:
            await coming.promise(waiting, 2, 5, "theirs")
        except NotNowError as refusal:
            clock.now += refusal.retry_after_seconds
            continue
        clock.now += PROMISE_SECONDS
        held += PROMISE_SECONDS
        await coming.lapse(waiting, clock.now)
    assert 0 < held / (clock.now - began) < 0.05


@pytest.mark.parametrize("joins", [True, False])
async def test_a_subject_rests_twice_as_long_each_time(joins, clock):
    waiting, coming = Waiting(5), Newcomers("line")
    for times in (FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST):
        await coming.promise(waiting, 2, 5, "ours")
        clock.now += 0.5
        if joins:
            await coming.join(waiting, 2, 5)
            del waiting.ranks[2]
        else:
            coming.lose(2)
            await coming.lapse(waiting, clock.now)
        clock.now += times * 0.5 - 0.1
        with pytest.raises(NotNowError, match="has waited for a newcomer of 'ours'"):
            await coming.promise(waiting, 2, 5, "ours")
        assert await coming.promise(waiting, 3, 5, f"others-{times}") == 5, "others are not refused"
        await coming.join(waiting, 3, 5)
        del waiting.ranks[3]
        clock.now += 0.2


async def test_a_subject_that_has_asked_for_nothing_for_long_rests_as_at_first(clock):
    waiting, coming = Waiting(5), Newcomers("line")
    for pause in (40.0, LONGEST_REST * PROMISE_SECONDS + 40.0, FIRST_REST * PROMISE_SECONDS):
        await coming.promise(waiting, 2, 5, "ours")
        clock.now += PROMISE_SECONDS
        await coming.lapse(waiting, clock.now)
        clock.now += pause
    assert await coming.promise(waiting, 2, 5, "ours") == 5
