"""The gradients that wait for a group to take them: as many as K lets its members make, whoever sends more."""

import asyncio
import random
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.merge_loop import MergeLoop
from cloud_trainer.groups.seats import Seat, Seats
from cloud_trainer.groups.waits import LateMembers
from shared.errors import ProtocolError
from shared.placement import Cargo, Crossing, Rows
from tests.support.virtual import run_virtually

STEP, STALENESS, SLICES = 3, 2, 4
GRADIENTS = [Crossing("near", "group", Cargo.WEIGHT_GRADIENT, 0, Rows(0, 4), (number,)) for number in range(SLICES)]


class Group:
    """A group that is at a step, notes what it takes, and takes nothing while it is held up."""

    def __init__(self, *, fails: bool = False) -> None:
        """fails: every gradient meets a defect."""
        self._fails = fails
        self.taken: list[tuple[int, int, int]] = []
        """Rank, step and slice."""
        self.failures: list[Exception] = []
        self.held_up = asyncio.Lock()
        merging = SimpleNamespace(
            step=STEP,
            agreement=SimpleNamespace(staleness=STALENESS, steps=1000),
            is_done=False,
            merge=self._merge,
            held_up=list,
            take_copy=lambda: None,
        )
        newcomers = SimpleNamespace(lapse=self._nothing, seconds_left=lambda _now: None)
        self.seats = Seats("ours", self._nothing)
        config, late = GroupConfig(name="ours", size=2), LateMembers(3600.0)
        self.loop = MergeLoop(config, merging, None, self.seats, newcomers, late, self.held_up, self._fail)

    async def _merge(self, rank, one):
        self.taken.append((rank, one.step, one.crossing.of_block.number))
        if self._fails:
            raise RuntimeError("a defect")
        return []

    def _fail(self, failure):
        self.failures.append(failure)
        self.loop.stop()

    async def _nothing(self, *_given):
        return []

    def seat(self, rank: int) -> Seat:
        """Return the seat of a session that has begun."""
        session = SimpleNamespace(worker=SimpleNamespace(executor=SimpleNamespace(fail=self.failures.append)))
        seat = Seat(rank, "member", session, decides=True, other_trainers=0, is_lossy=False, began_seconds=0.0)
        self.seats.occupy(seat)
        return seat

    async def take_all(self) -> None:
        """Let the loop take what is there."""
        self.loop.start()
        for _ in range(1000):
            await asyncio.sleep(0)
        await self.loop.close()


def gradient(step: int, number: int = 0) -> SimpleNamespace:
    return SimpleNamespace(step=step, crossing=GRADIENTS[number])


def test_a_gradient_further_ahead_than_k_lets_it_ends_its_session_and_is_not_kept():
    async def main() -> None:
        group = Group()
        seat = group.seat(0)
        async with group.held_up:
            for step in range(STEP, STEP + 100):
                group.loop.queue_gradient(seat, gradient(step))
        await group.take_all()
        assert group.taken == [(0, step, 0) for step in range(STEP, STEP + STALENESS + 1)]
        assert len(group.failures) == 100 - len(group.taken)
        assert all(isinstance(failure, ProtocolError) for failure in group.failures)

    run_virtually(main)


@given(seed=st.integers(0, 1 << 32))
def test_gradients_are_taken_in_their_order_and_those_of_sessions_that_have_ended_are_not_kept(seed):
    async def main() -> None:
        group, dice = Group(), random.Random(seed)
        seats = [group.seat(rank) for rank in range(2)]
        expected: list[tuple[Seat, tuple[int, int, int]]] = []
        async with group.held_up:
            for _ in range(40):
                rank, step, number = dice.randrange(2), STEP + dice.randrange(STALENESS + 1), dice.randrange(SLICES)
                if dice.random() < 0.1:
                    expected = [each for each in expected if each[0] is not seats[rank]]
                    seats[rank] = group.seat(rank)
                    group.loop.drop_unseated()
                elif dice.random() < 0.1:
                    group.loop.look_again()
                else:
                    group.loop.queue_gradient(seats[rank], gradient(step, number))
                    expected.append((seats[rank], (rank, step, number)))
        await group.take_all()
        assert group.taken == [what for _, what in expected]
        assert not group.failures

    run_virtually(main)


def test_whoever_waits_for_a_step_hears_of_the_end_of_the_life_at_once():
    async def main() -> None:
        group, now = Group(), asyncio.get_running_loop().time
        group.loop.start()
        began = now()
        waiting = asyncio.create_task(group.loop.reach(STEP + 1))
        await asyncio.sleep(0)
        group.loop.stop()
        assert not await waiting
        assert now() == began
        assert not await group.loop.reach(STEP), "nobody reaches a step of a life that has ended"
        await group.loop.close()

    run_virtually(main)


def test_a_step_that_does_not_come_is_waited_for_so_long_and_no_longer():
    async def main() -> None:
        group = Group()
        assert await group.loop.reach(STEP)
        assert not await group.loop.reach(STEP + 1)

    run_virtually(main)


def test_a_defect_while_a_gradient_is_merged_ends_the_life_and_no_other_gradient_is_taken():
    async def main() -> None:
        group = Group(fails=True)
        seat = group.seat(0)
        for step in range(STEP, STEP + STALENESS + 1):
            group.loop.queue_gradient(seat, gradient(step))
        await group.take_all()
        assert [str(failure) for failure in group.failures] == ["a defect"]
        assert group.taken == [(0, STEP, 0)]

    run_virtually(main)
