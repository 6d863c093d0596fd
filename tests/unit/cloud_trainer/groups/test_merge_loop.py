"""The gradients that wait for a group to take them: as many as K lets its members make, whoever sends more."""

import asyncio
import random
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from cloud_trainer.groups.merge_loop import MergeLoop
from cloud_trainer.groups.seats import Seat, Seats
from cloud_trainer.groups.waits import Waits
from shared.errors import ProtocolError
from shared.placement import Cargo, Crossing, Rows
from tests.support.virtual import run_virtually

STEP, STALENESS, SLICES = 3, 2, 4
GRADIENTS = [Crossing("near", "group", Cargo.WEIGHT_GRADIENT, 0, Rows(0, 4), (number,)) for number in range(SLICES)]


class Group:
    """A group that is at a step, notes what it takes, and takes nothing while it is held up."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, int]] = []
        """Rank, step and slice."""
        self.failures: list[Exception] = []
        self.held_up = asyncio.Lock()
        merging = SimpleNamespace(
            step=STEP,
            agreement=SimpleNamespace(staleness=STALENESS),
            merge=self._merge,
            held_up=list,
            take_copy=lambda: None,
        )
        newcomers = SimpleNamespace(lapse=self._nothing, seconds_left=lambda _now: None)
        training = SimpleNamespace(merging=merging, waits=Waits(None), newcomers=newcomers)
        self.seats = Seats("ours", self._nothing)
        self.loop = MergeLoop(
            SimpleNamespace(name="ours", leave_out_seconds=None), None, self.seats, training, self.held_up
        )

    async def _merge(self, rank, one):
        self.taken.append((rank, one.step, one.crossing.of_block.number))
        return []

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
        self.loop.begin()
        for _ in range(1000):
            await asyncio.sleep(0)
        await self.loop.stop()


def gradient(step: int, number: int = 0) -> SimpleNamespace:
    return SimpleNamespace(step=step, crossing=GRADIENTS[number])


def test_a_gradient_further_ahead_than_k_lets_it_ends_its_session_and_is_not_kept():
    async def main() -> None:
        group = Group()
        seat = group.seat(0)
        async with group.held_up:
            for step in range(STEP, STEP + 100):
                group.loop.give(seat, gradient(step))
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
                    group.loop.give(seats[rank], gradient(step, number))
                    expected.append((seats[rank], (rank, step, number)))
        await group.take_all()
        assert group.taken == [what for _, what in expected]
        assert not group.failures

    run_virtually(main)
