"""Groups and their members in this process, and what disturbs them."""

import copy
from collections import Counter
from functools import partial

import torch

from benchmarks.support.in_process_group import InProcessGroup
from cloud_trainer.groups.group import Group, GroupListener
from cloud_trainer.groups.group_weights import GroupWeights
from shared.execution.blocks import Method
from shared.execution.in_process_session import InProcessSession
from shared.execution.shared_blocks import CodedWeights
from shared.placement import BlockSlice
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import LossHead
from tests.support.group_members import (
    SAMPLES,
    codec_down,
    owned_by,
)
from tests.support.placed import CPU, built, chain_of, recipe

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "adafactor", "lion")


class Log(GroupListener):
    """The ranks whose gradients are in each update, how often others were left out or too late, and steps that were told."""

    def __init__(self):
        self.ranks, self.left_out, self.late, self.steps = {}, Counter(), Counter(), []
        self._after, self._had = {}, {}

    def watch(self, group):
        """Note the weights that members get from a group, which may be those of a later step where they are late."""
        group.merge, group.leave_out = (partial(self._noted, give) for give in (group.merge, group.leave_out))

    def _noted(self, give, *given):
        handed_out = give(*given)
        for one in handed_out:
            weights = one.weights.weights if isinstance(one.weights, CodedWeights) else one.weights
            self._had[one.rank, one.step + 1, one.of] = next(
                step + 1
                for (step, of), after in self._after.items()
                if of == one.of and all(torch.equal(after[name], weights[name]) for name in after)
            )
        return handed_out

    def had_at(self, rank, step, one):
        """Return the step whose first weights of a slice a rank had as it computed a step."""
        return self._had.get((rank, step, one), step)

    def stepped(self, step):
        self.steps.append(step)

    def updated(self, step, one, ranks, left_out, weights):
        self.ranks[step, one], self._after[step, one] = ranks, weights
        self.left_out.update(left_out)

    def dropped(self, rank):
        self.late[rank] += 1


def grouped(module, told, size, placement, *, staleness=0, log=None):
    """Make a group of so many members, all in this process; return what each trainer has of it, the members, and the chain."""
    chain = chain_of(copy.deepcopy(module))
    groups = {
        trainer: Group(
            GroupWeights(HeldBlocks(chain, told, CPU, owned_by(trainer, placement)), codec_down(placement)),
            range(size),
            staleness,
            0,
            log,
            leaves_out=log is not None,
        )
        for trainer in dict.fromkeys(placement.owners.values())
    }

    return groups, members_of(module, told, placement, groups), chain


def members_of(module, told, placement, groups):
    """Make the members of what trainers have of a group."""

    def member(rank, give):
        chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
        how = Method(LossHead(told.loss, None), first_sample=rank * SAMPLES)
        return InProcessSession(chains, placement, told, how, CPU, give)

    return InProcessGroup(groups, member)


def part_of(chain, block, value):
    """Return a gradient of one value."""
    names = chain.blocks[block].named_parameters()
    return {f"gradient/{name}": torch.full_like(parameter, value) for name, parameter in names.items()}


class LostError(Exception):
    pass


class Limited:
    """Loses a rank once its groups have taken so many gradients of it."""

    def __init__(self, groups, rank, count):
        self._groups, self._left = list(groups), count
        for group in self._groups:
            group.merge = partial(self.merge, group.merge, rank)

    def merge(self, merge, lost, rank, *given):
        if rank == lost:
            if self._left == 0:
                raise LostError
            self._left -= 1
        return merge(rank, *given)

    def stop(self):
        for group in self._groups:
            del group.merge


def train_in_any_order(dice, groups, members, batches_by_rank, steps):
    """Have members do so many steps as the dice say: who goes on, and which block goes on without the others."""
    running = {rank: members.member(rank).training(0, steps, each) for rank, each in batches_by_rank.items()}
    while running:
        rank = dice.choice(sorted(running))
        if next(running[rank], running) is running:
            del running[rank]
        trainer = dice.choice(list(groups))
        if (blocks := groups[trainer].held_up()) and dice.random() < 0.3:
            members.leave_out(trainer, dice.choice(blocks))


def alone(size=2, down="raw", **how):
    """Return a group of which tests give the gradients themselves."""
    chain = chain_of(built("dropping"))
    return Group(GroupWeights(HeldBlocks(chain, recipe("sgd"), CPU, range(4)), down), range(size), **how), chain


def give_step(group, chain, rank, step):
    """Give all gradients of a step."""
    return [
        merged
        for block in (3, 2, 1, 0)
        for merged in group.merge(rank, step, BlockSlice(block), part_of(chain, block, 1.0), 2)
    ]
