"""Members bring all trainers of a group to one life by asking again and again, whatever some trainers have lost."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.next_life import NextLives
from cloud_trainer.groups.refusals import NotNowError
from shared.checkpoint import CheckpointName
from tests.support.examples import examples

SIZE, MOST, TRAINERS = 2, 4, 3
STEPS_A_CHECKPOINT, ROUNDS = 4, 12


class Seats:
    """The seats of members that are there and have not begun."""

    attached = ()

    def __init__(self):
        self._of = {}

    def sit(self, rank):
        return self._of.setdefault(rank, SimpleNamespace(rank=rank, began_seconds=None))

    def clear(self):
        self._of.clear()

    def at(self, rank):
        return self._of.get(rank)

    def holds(self, seat):
        return self._of.get(seat.rank) is seat


class Trainer:
    """One trainer: its disk, and the life that is in its memory."""

    def __init__(self):
        self.lose(also_disk=True)

    def lose(self, *, also_disk):
        """Be another process, which finds what is on the disk, if anything is left there."""
        if also_disk:
            self.kept = {}
            """Members who go on, by checkpoint."""
            self.staying = dict.fromkeys(range(SIZE), 0)
        self.merging = None
        self.seats = Seats()
        config = GroupConfig(name="line", size=SIZE, most=MOST)
        self.lives = NextLives(config, self, self.seats, None)

    async def names(self):
        return sorted(self.kept, reverse=True)

    async def load(self, name):
        return SimpleNamespace(name=name) if name in self.kept else None

    async def to_go_on(self):
        return self.staying

    def unfinished(self, members):
        return sorted(members)

    async def position(self):
        return await self.lives.position(self.merging)

    def live(self, life):
        """Begin a life; its members have other sessions from now on."""
        self.merging = SimpleNamespace(life=life, step=life.first_step, staying=dict(life.members))
        self.lives.forget_words()
        self.seats.clear()


class Group:
    """Trainers, of which the first decides, and members that take part and ask."""

    def __init__(self, dice):
        self.dice = dice
        self.trainers = [Trainer() for _ in range(TRAINERS)]
        self.ranks = set(range(SIZE))

    @property
    def lives(self):
        return {None if one.merging is None else one.merging.life.number for one in self.trainers}

    def is_whole(self):
        return len(self.lives) == 1 and None not in self.lives

    def train(self):
        """Do some steps, and write the checkpoints that are due, of which some trainers may not come to write theirs."""
        for _ in range(self.dice.randrange(6)):
            for one in self.trainers:
                one.merging.step += 1
        life, step = self.trainers[0].merging.life, self.trainers[0].merging.step
        if step and step % STEPS_A_CHECKPOINT == 0:
            for one in self.trainers[: self.dice.randint(1, TRAINERS)]:
                one.kept[CheckpointName(life.number, step)] = one.staying = dict(one.merging.staying)

    def join(self):
        """Have another rank join, which some trainers may not come to know."""
        rank = self.dice.randrange(SIZE, MOST)
        self.ranks.add(rank)
        for one in self.trainers[: self.dice.randint(1, TRAINERS)]:
            one.merging.staying.setdefault(rank, one.merging.step + 1)

    def lose(self):
        """Lose the processes of some trainers, and the disks of some of these."""
        for one in self.dice.sample(self.trainers, self.dice.randint(1, TRAINERS)):
            one.lose(also_disk=self.dice.random() < 0.4)

    async def ask(self, rank):
        """Ask the trainer that decides, and tell the others its answer."""
        first, *others = self.trainers
        positions = [await one.position() for one in others]
        following = await first.lives.decided(first.merging, positions, first.seats.sit(rank))
        if following is not None:
            first.live(following.life)
        for one in others:
            following = await one.lives.followed(one.merging, first.merging.life, one.seats.sit(rank))
            if following is not None:
                one.live(following.life)

    async def settle(self):
        """Have all members ask, in any order, until all trainers are in one life."""
        for _ in range(ROUNDS):
            for rank in self.dice.sample(sorted(self.ranks), len(self.ranks)):
                for one in self.trainers:
                    one.seats.sit(rank)
                try:
                    await self.ask(rank)
                except NotNowError:
                    continue
            if self.is_whole():
                return
        pytest.fail(f"after {ROUNDS} rounds the trainers are in the lives {self.lives}")


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 1 << 32))
async def test_all_trainers_come_to_one_life_whatever_was_lost(seed):
    group = Group(random.Random(seed))
    for _ in range(6):
        await group.settle()
        for act in group.dice.choices([group.train, group.join, group.lose], k=3):
            if group.is_whole():
                act()
    await group.settle()
