"""A group of devices that train one model: it adds up what its members give, updates, and hands out the new weights.

Each member has a rank, runs the whole model on samples of its own, and gives the gradient of each slice of a block once a step.
A slice is updated once all ranks that take part in the step have given theirs; gradients are averaged in the order of ranks, so
the order of arrival decides nothing. Several trainers have each a `Group` of its own, of other blocks. Knows nothing of
sessions, threads and links.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from cloud_trainer.groups.group_weights import GroupVersions, GroupWeights
from shared.errors import ProtocolError
from shared.execution.shared_blocks import BlockPart, CodedWeights, WeightedPart, averaged
from shared.placement import BlockSlice
from shared.training.finite import are_finite
from shared.training.held_blocks import BlockGradients
from shared.training.held_state import changing_blocks

_AT_A_STEP = "rank {rank} gives the gradient of {what} of step {step}; the group is at step {now}"


MOST_BEHIND = 50
"""Most steps by which a part may be late in a group that leaves out late ranks. One that is further behind begins again."""


class GroupListener:
    """A reader of what happens in a group, which does nothing. Called on the thread of the group."""

    def stepped(self, step: int) -> None:
        """Note the step that comes next: all slices of the one before are updated, and nobody has their weights yet."""

    def updated(
        self, step: int, one: BlockSlice, ranks: Sequence[int], left_out: Sequence[int], weights: BlockPart
    ) -> None:
        """Note the update of a slice by the gradients of some ranks, without others, and the weights that members then have."""

    def dropped(self, rank: int) -> None:
        """Note that a gradient has come too late to count."""


class Merged(NamedTuple):
    """The weights of a slice after the update of a step, for one member. Others may have the same tensors."""

    rank: int
    step: int
    of: BlockSlice
    weights: BlockPart | CodedWeights
    rate_drops: int
    """Times that the learning rate of the group has been lowered."""


@dataclass(slots=True)
class _Seat:
    """The steps in which one rank takes part."""

    first: int
    stop: int | None = None
    """First step without it; None while no end is known."""
    awaited: set[tuple[int, BlockSlice]] = field(default_factory=set)
    """Steps and slices of which it has given the gradient and does not have the weights."""
    is_late: bool = False
    """True from when a slice went on without it until anything comes of it: nobody waits for it meanwhile."""
    has: dict[BlockSlice, int] = field(default_factory=dict)
    """By slice, the step that begins with the weights which it has."""
    is_promised: bool = False
    """True while the rank is no member yet, and steps wait for it all the same."""

    def takes_part(self, step: int) -> bool:
        """Tell whether the group waits for the rank at a step."""
        return self.first <= step and (self.stop is None or step < self.stop)


class Group:
    """The weights and optimizer of a group, and its members. Belongs to one thread.

    Its first members take part from the first step on, whether they have come or not.
    """

    def __init__(
        self,
        weights: GroupWeights,
        ranks: Collection[int],
        staleness: int = 0,
        first_step: int = 0,
        listener: GroupListener | None = None,
        *,
        leaves_out: bool = False,
    ) -> None:
        """weights: of all blocks of the model, or of those of one trainer, before `first_step`. ranks: the first members.

        staleness: K, by which a member may be ahead of the group.
        leaves_out: late ranks are left out, so that a part may come when its step is done.
        """
        self._weights, self._held = weights, weights.held
        self._versions = GroupVersions(weights, first_step)
        self._staleness = staleness
        self._listener = listener or GroupListener()
        self._behind = max(staleness + 1, MOST_BEHIND if leaves_out else 0)
        """Most steps by which a part may come after its step is done."""
        blocks = (block for block in changing_blocks(self._held.chain) if block in self._held.indices)
        self.slices = tuple(one for block in blocks for one in weights.slices.numbered(block))
        """The slices of the blocks of which it has the weights, and that training changes."""
        self._known = frozenset(self.slices)
        self._seats = {rank: _Seat(first_step, has=dict.fromkeys(self.slices, first_step)) for rank in ranks}
        self._parts: dict[tuple[int, BlockSlice], dict[int, WeightedPart]] = defaultdict(dict)
        """By step and slice, the parts of the update to come, by rank."""
        self._gradients: dict[BlockSlice, BlockGradients] = {}
        """Gradients of this step that wait for those of all, to be clipped by one norm."""
        self._updated: set[BlockSlice] = set()
        """The slices that this step has updated."""
        self._counted: dict[tuple[int, BlockSlice], tuple[int, ...]] = {}
        """By step and slice of the last steps, the ranks whose gradients are in the update."""

    @property
    def step(self) -> int:
        """Return the oldest step of which some slice is not updated."""
        return self._versions.step

    @property
    def ranks(self) -> dict[int, int]:
        """By rank that takes part in this step or will, the first step in which it does."""
        seats = list(self._seats.items())  # a scrape of the metrics reads this on another thread
        return {
            rank: seat.first
            for rank, seat in seats
            if not seat.is_promised and (seat.stop is None or seat.stop > self.step)
        }

    @property
    def staying(self) -> dict[int, int]:
        """By rank of which no end is known, the first step in which it takes part."""
        seats = sorted(self._seats.items())
        return {rank: seat.first for rank, seat in seats if not seat.is_promised and seat.stop is None}

    @property
    def is_between_steps(self) -> bool:
        """Tell whether nothing of the present step is updated yet."""
        return not self._updated and not self._gradients

    def missing(self) -> list[int]:
        """List the ranks for which the present step waits."""
        seats = list(self._seats.items())  # who shows the group reads this on another thread
        return [rank for rank, seat in seats if any(self._is_awaited(rank, seat, one) for one in self.slices)]

    def held_up(self) -> list[BlockSlice]:
        """List the slices of the present step of which some ranks have given the gradient and others are waited for."""
        given = [one for one in self.slices if self._parts.get((self.step, one))]
        seats = list(self._seats.items())  # the loop of the group reads this on another thread
        return [one for one in given if any(self._is_awaited(rank, seat, one) for rank, seat in seats)]

    def leave_out(self, step: int, one: BlockSlice) -> list[Merged]:
        """Update a slice of the present step without the ranks that have not given its gradient, if some have.

        Nobody waits for these until anything comes of them. Returns the weights that the others wait for.
        """
        if step == self.step and one in self.held_up():
            for rank, seat in self._seats.items():
                seat.is_late |= self._lacks(rank, seat, one)
        return self._advanced()

    def pass_over(self, rank: int) -> list[Merged]:
        """Wait for a rank no longer until anything comes of it or it begins again; returns what the others wait for."""
        self._seats[rank].is_late = True
        return self._advanced()

    def promise(self, rank: int, step: int) -> int | None:
        """Return the first step that can wait for a rank, if it has to join first; None where it can begin at `step`.

        No step from that one on is done without the rank until `join` or `withdraw`. Ranks join that take no part any more or
        not yet, and are no members until then.
        """
        if (seat := self._seats.get(rank)) is None or (seat.stop is not None and seat.stop <= self.step):
            seat = self._seats[rank] = _Seat(self._open_step, is_promised=True)
        if seat.is_promised:
            seat.first = max(seat.first, self._open_step)
        elif seat.first <= step <= self.step:
            return None
        return seat.first

    def join(self, rank: int, step: int) -> list[Merged] | None:
        """Have a rank take part in all steps from this one on, and wait for it in none before.

        Returns what the others waited for; None, with nothing changed, for a step that can wait for nobody any more.
        """
        if step < self._open_step:
            return None
        self._seats[rank] = _Seat(step)
        return self._advanced()

    def withdraw(self, rank: int) -> list[Merged]:
        """Wait no longer for a rank that was to join and has not; returns what the others waited for."""
        if (seat := self._seats.get(rank)) is not None and seat.is_promised:
            del self._seats[rank]
        return self._advanced()

    @property
    def _open_step(self) -> int:
        """The first step that can wait for one more rank, because nothing of it is updated."""
        return self.step if self.is_between_steps else self.step + 1

    def take_seat(self, rank: int) -> int:
        """Have a rank go on that `promise` lets begin, with nothing but what it gets here; returns the step where it can.

        It begins again at the present step: what it has given of that counts already, and is dropped when it comes again. An
        end that it has announced and not come to is forgotten.
        """
        seat = self._seats[rank]
        seat.awaited.clear()
        seat.is_late, seat.stop = False, None
        return max(self.step, seat.first)

    def first_weights(self, rank: int, step: int) -> dict[int, BlockPart]:
        """Have a rank begin with the weights, by block, with which a step begins: the present one or the last.

        With K = 0 and several groups, a member may have to do that one for another group. Groups that have gone further have
        done so without it, or with K > 0. Then the oldest weights are returned that are here.
        """
        found = {one: self._versions.beginning(one, step) for one in self.slices}
        self._seats[rank].has = {one: version.step for one, version in found.items()}
        weights = {one: version.weights for one, version in found.items()}
        return {block: self._weights.joined(block, weights) for block in dict.fromkeys(one.block for one in weights)}

    def leave(self, rank: int, step: int) -> list[Merged]:
        """Have a rank take part in no step from this one on, nor in one that is done without it. It gives what comes before.

        Returns what the others waited for. Raises ProtocolError where it has given anything of the step.
        """
        seat, stop = self._seats[rank], max(step, self.step)
        if seat.stop is not None and stop >= seat.stop:
            if step > seat.stop:
                raise ProtocolError(
                    f"rank {rank} is to leave the group before step {step}, and has said before step {seat.stop}; it can only "
                    "leave earlier"
                )
            return []
        given = [*self._parts.items(), *self._counted.items()]
        if any(at >= stop and rank in ranks for (at, _), ranks in given):
            raise ProtocolError(f"rank {rank} is to leave the group before step {step}, which has begun")
        seat.stop = stop
        return self._advanced()

    def end(self, step: int) -> list[int]:
        """Do no step from this one on; returns the ranks that have given gradients of any, which are dropped.

        A rank that was to take part later is a member all the same, and a promise is forgotten. Raises ProtocolError, and
        changes nothing, unless all steps before are done and nothing of this one is updated.
        """
        if step != self.step or not self.is_between_steps:
            raise ProtocolError(f"the group cannot end before step {step}; it is at step {self.step}")
        self._parts.clear()
        self._seats = {rank: seat for rank, seat in self._seats.items() if not seat.is_promised}
        for seat in self._seats.values():
            seat.first = min(seat.first, step)
        return [rank for rank, seat in self._seats.items() if seat.awaited]

    def merge(
        self,
        rank: int,
        step: int,
        one: BlockSlice,
        part: BlockPart,
        samples: int,
        label_count: float = 0.0,
        rate_drops: int = 0,
    ) -> list[Merged]:
        """Take the gradient of a slice and its buffers, of one member's batch; returns the weights that members wait for.

        samples, label_count: of the batch; members are weighed by the one or the other, as the recipe's `mean` says.
        rate_drops: times that the evaluations of this member have lowered the rate; it is as low as that of any member.
        A gradient that counts already is dropped, known by rank, step and slice, and so is one that comes too late. Raises
        ProtocolError, and changes nothing, for one that may not come.
        """
        seat = self._seats[rank]
        self._check(rank, step, one, part, samples)
        seat.awaited.add((step, one))
        seat.is_late = False
        if rank not in self._counted.get((step, one), (rank,)):
            self._listener.dropped(rank)
        if step < self.step or (one in self._updated and step == self.step):
            return [self._merged(rank, step, one)]
        if one in self._gradients and step == self.step:
            return []
        self._parts[step, one].setdefault(rank, WeightedPart(part, samples, label_count, rate_drops))
        return self._advanced((one,))

    def _check(self, rank: int, step: int, one: BlockSlice, part: BlockPart, samples: int) -> None:
        is_cut = BlockSlice(one.block, 1) in self._known
        what = f"slice {one.number} of block {one.block}" if is_cut else f"block {one.block}"
        where = _AT_A_STEP.format(rank=rank, what=what, step=step, now=self.step)
        seat = self._seats[rank]
        if one not in self._known:
            raise ProtocolError(f"{where}, and training does not change that block")
        if not seat.takes_part(step):
            raise ProtocolError(f"{where}, and the rank takes no part in that")
        if not self.step - self._behind <= step <= self.step + self._staleness:
            raise ProtocolError(f"{where}, and with K = {self._staleness} nobody is so far from it")
        if (step, one) in seat.awaited:
            raise ProtocolError(f"{where}, and has given it before")
        if samples < 1:
            raise ProtocolError(f"{where}, of {samples} samples; it must be of 1 or more")
        for name, is_finite in zip(part, are_finite(list(part.values())), strict=True):
            if not is_finite:
                raise ProtocolError(f"{where}, and {name.partition('/')[2]} holds numbers that are not finite")

    def _lacks(self, rank: int, seat: _Seat, one: BlockSlice) -> bool:
        is_there = one in self._updated or one in self._gradients or rank in self._parts.get((self.step, one), {})
        return seat.takes_part(self.step) and not is_there

    def _is_awaited(self, rank: int, seat: _Seat, one: BlockSlice) -> bool:
        return self._lacks(rank, seat, one) and not seat.is_late

    def _advanced(self, changed: Sequence[BlockSlice] | None = None) -> list[Merged]:
        """Update all slices of which all gradients are there, step after step.

        changed: those of this step of which anything has come, if nothing else has happened; left out, all are looked at.
        """
        merged: list[Merged] = []
        while True:
            ready = [one for one in (self.slices[::-1] if changed is None else changed) if self._is_ready(one)]
            if not ready:
                return merged
            for one in ready:
                merged += self._update(one)
            if len(self._updated) == len(self.slices):
                self._end_step()
            changed = None

    def _is_ready(self, one: BlockSlice) -> bool:
        waits = one in self._updated or one in self._gradients or not self._parts.get((self.step, one))
        return not waits and not any(self._is_awaited(rank, seat, one) for rank, seat in self._seats.items())

    def _update(self, one: BlockSlice) -> list[Merged]:
        parts = self._parts.pop((self.step, one))
        ranks = sorted(parts)
        ranked = [parts[rank] for rank in ranks]
        self._counted[self.step, one] = tuple(ranks)
        self._versions.begin_update(one)
        self._held.rate_drops = max(self._held.rate_drops, *(part.rate_drops for part in ranked))
        with torch.no_grad():
            block, by_labels = self._held.chain.blocks[one.block], self._held.recipe.mean == "token"
            self._gradients[one] = averaged(block, ranked, self._weights.slices[one], by_labels=by_labels)
        if self._held.clipping is not None and len(self._gradients) < len(self.slices):
            return []
        gradients, self._gradients = self._gradients, {}
        self._learn(gradients)
        for updated in gradients:
            weights = self._versions.updated(updated)
            self._updated.add(updated)
            counted = self._counted[self.step, updated]
            left_out = [
                rank for rank, seat in self._seats.items() if seat.takes_part(self.step) and rank not in counted
            ]
            self._listener.updated(self.step, updated, counted, left_out, weights)
        if len(self._updated) == len(self.slices):
            self._listener.stepped(self.step + 1)
        return [
            self._merged(rank, self.step, updated)
            for updated in gradients
            for rank, seat in self._seats.items()
            if (self.step, updated) in seat.awaited
        ]

    def _learn(self, gradients: Mapping[BlockSlice, BlockGradients]) -> None:
        """Update slices of which none waits for the norm of others, or all that do."""
        slices = self._weights.slices
        uncut = {one.block: gradient for one, gradient in gradients.items() if len(slices.of(one.block)) == 1}
        self._held.put_back(uncut)
        self._held.update(uncut, self.step, rate_drops=self._held.rate_drops)
        for one, gradient in gradients.items():
            if one.block not in uncut:
                self._held.update_slice(one.block, slices[one], gradient, self.step)

    def _end_step(self) -> None:
        self._updated = set()
        self._versions.end_step()
        oldest = self.step - self._behind
        self._counted = {key: ranks for key, ranks in self._counted.items() if key[0] >= oldest}

    def _merged(self, rank: int, step: int, one: BlockSlice) -> Merged:
        seat = self._seats[rank]
        seat.awaited.discard((step, one))
        is_of_now = step == self.step and one in self._updated
        version = self._versions.newest(one) if is_of_now else self._versions.beginning(one, step + 1)
        had, seat.has[one] = seat.has.get(one), version.step
        return Merged(rank, step, one, self._versions.as_sent(one, version, had), self._held.rate_drops)
