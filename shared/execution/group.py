"""A group of devices that train one model: it adds up what its members give, updates, and hands out the new weights.

Each member has a rank, runs the whole model on samples of its own, and gives the gradient of each block once a step. A block is
updated once all ranks that take part in the step have given theirs; gradients are averaged in the order of ranks, so the order
of arrival decides nothing. Several trainers have each a `Group` of its own, of other blocks. Knows nothing of sessions, threads
and links.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from shared.errors import ProtocolError
from shared.execution.group_weights import GroupWeights
from shared.execution.shared_blocks import BlockPart, CodedWeights, WeightedPart, averaged
from shared.training.held_blocks import BlockGradients
from shared.training.held_state import changing_blocks

_AT_A_STEP = "rank {rank} gives the gradient of block {block} of step {step}; the group is at step {now}"


MOST_BEHIND = 50
"""Most steps by which a part may be late in a group that leaves out late ranks. One that is further behind begins again."""


class GroupListener:
    """A reader of what happens in a group, which does nothing. Called on the thread of the group."""

    def stepped(self, step: int) -> None:
        """Note the step that comes next: all blocks of the one before are updated, and nobody has their weights yet."""

    def updated(self, step: int, block: int, ranks: Sequence[int], left_out: Sequence[int], weights: BlockPart) -> None:
        """Note the update of a block by the gradients of some ranks, without others, and the weights that members then have."""

    def dropped(self, rank: int) -> None:
        """Note that a gradient has come too late to count."""


class Merged(NamedTuple):
    """The weights of a block after the update of a step, for one member. Others may have the same tensors."""

    rank: int
    step: int
    block: int
    weights: BlockPart | CodedWeights


@dataclass(slots=True)
class _Seat:
    """The steps in which one rank takes part."""

    first: int
    stop: int | None = None
    """First step without it; None while no end is known."""
    awaited: set[tuple[int, int]] = field(default_factory=set)
    """Steps and blocks of which it has given the gradient and does not have the weights."""
    is_late: bool = False
    """True from when a block went on without it until anything comes of it: nobody waits for it meanwhile."""
    has: dict[int, int] = field(default_factory=dict)
    """By block, the step that begins with the weights which it has."""
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
        self.step = first_step
        """The oldest step of which some block is not updated."""
        self._weights, self._held = weights, weights.held
        self._staleness = staleness
        self._listener = listener or GroupListener()
        self._behind = max(staleness + 1, MOST_BEHIND if leaves_out else 0)
        """Most steps by which a part may come after its step is done."""
        self.blocks = tuple(block for block in changing_blocks(self._held.chain) if block in self._held.indices)
        """The blocks of which it has the weights, and that training changes."""
        self._seats = {rank: _Seat(first_step, has=dict.fromkeys(self.blocks, first_step)) for rank in ranks}
        self._parts: dict[tuple[int, int], dict[int, WeightedPart]] = defaultdict(dict)
        """By step and block, the parts of the update to come, by rank."""
        self._gradients: dict[int, BlockGradients] = {}
        """Gradients of blocks of this step that wait for those of all, to be clipped by one norm."""
        self._updated: dict[int, BlockPart] = {}
        """By block that this step has updated, the weights after that."""
        self._before: dict[int, BlockPart] = {}
        """By the same blocks, the weights with which the step began."""
        self._last: dict[int, BlockPart] = {}
        """By block, the weights with which the step before began, until this one updates any."""
        self._coded: dict[int, CodedWeights] = {}
        """By block, the weights after its newest update, where they go by a codec."""
        self._counted: dict[tuple[int, int], tuple[int, ...]] = {}
        """By step and block of the last steps, the ranks whose gradients are in the update."""

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
        """Tell whether no block of the present step is updated yet."""
        return not self._updated and not self._gradients

    def missing(self) -> list[int]:
        """List the ranks for which the present step waits."""
        return [rank for rank in self._seats if any(self._is_awaited(rank, block) for block in self.blocks)]

    def held_up(self) -> list[int]:
        """List the blocks of the present step of which some ranks have given the gradient and others are waited for."""
        given = [block for block in self.blocks if self._parts.get((self.step, block))]
        return [block for block in given if any(self._is_awaited(rank, block) for rank in self._seats)]

    def leave_out(self, step: int, block: int) -> list[Merged]:
        """Update a block of the present step without the ranks that have not given its gradient, if some have.

        Nobody waits for these until anything comes of them. Returns the weights that the others wait for.
        """
        if step == self.step and block in self.held_up():
            for rank, seat in self._seats.items():
                seat.is_late |= self._lacks(rank, block)
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
        """The first step that can wait for one more rank, because none of its blocks is updated."""
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
        found = {block: self._beginning(block, step) for block in self.blocks}
        self._seats[rank].has = {block: version for block, (version, _) in found.items()}
        return {block: weights for block, (_, weights) in found.items()}

    def _beginning(self, block: int, step: int) -> tuple[int, BlockPart]:
        """Return a block's weights as in `first_weights`, of which it may be updated already, and the step that they are of."""
        if step < self.step and (of_last := self._last.get(block)) is not None:
            return self.step - 1, of_last
        return self.step, self._before.get(block) or self._weights.of(block)

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

    def merge(self, rank: int, step: int, block: int, part: BlockPart, samples: int) -> list[Merged]:
        """Take the gradient of a block and its buffers, of one member's batch; returns the weights that members wait for.

        A gradient that counts already is dropped, known by rank, step and block, and so is one that comes too late. Raises
        ProtocolError, and changes nothing, for one that may not come.
        """
        seat = self._seats[rank]
        self._check(rank, step, block, part, samples)
        seat.awaited.add((step, block))
        seat.is_late = False
        if rank not in self._counted.get((step, block), (rank,)):
            self._listener.dropped(rank)
        if step < self.step or (block in self._updated and step == self.step):
            return [self._merged(rank, step, block)]
        if block in self._gradients and step == self.step:
            return []
        self._parts[step, block].setdefault(rank, WeightedPart(part, samples))
        return self._advanced()

    def _check(self, rank: int, step: int, block: int, part: BlockPart, samples: int) -> None:
        where = _AT_A_STEP.format(rank=rank, block=block, step=step, now=self.step)
        seat = self._seats[rank]
        if block not in self.blocks:
            raise ProtocolError(f"{where}, and training does not change that block")
        if not seat.takes_part(step):
            raise ProtocolError(f"{where}, and the rank takes no part in that")
        if not self.step - self._behind <= step <= self.step + self._staleness:
            raise ProtocolError(f"{where}, and with K = {self._staleness} nobody is so far from it")
        if (step, block) in seat.awaited:
            raise ProtocolError(f"{where}, and has given it before")
        if samples < 1:
            raise ProtocolError(f"{where}, of {samples} samples; it must be of 1 or more")
        for name, tensor in part.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ProtocolError(f"{where}, and {name.partition('/')[2]} holds numbers that are not finite")

    def _lacks(self, rank: int, block: int) -> bool:
        seat = self._seats[rank]
        is_there = block in self._updated or block in self._gradients or rank in self._parts.get((self.step, block), {})
        return seat.takes_part(self.step) and not is_there

    def _is_awaited(self, rank: int, block: int) -> bool:
        return self._lacks(rank, block) and not self._seats[rank].is_late

    def _advanced(self) -> list[Merged]:
        """Update all blocks of which all gradients are there, step after step."""
        merged: list[Merged] = []
        while True:
            ready = [block for block in reversed(self.blocks) if self._is_ready(block)]
            if not ready:
                return merged
            for block in ready:
                merged += self._update(block)
            if len(self._updated) == len(self.blocks):
                self._end_step()

    def _is_ready(self, block: int) -> bool:
        waits = block in self._updated or block in self._gradients or not self._parts.get((self.step, block))
        return not waits and not any(self._is_awaited(rank, block) for rank in self._seats)

    def _update(self, block: int) -> list[Merged]:
        self._last = {}  # no gradient of the last step counts any more, at any trainer
        parts = self._parts.pop((self.step, block))
        ranks = sorted(parts)
        ranked = [parts[rank] for rank in ranks]
        self._counted[self.step, block] = tuple(ranks)
        module_block = self._held.chain.blocks[block]
        self._before[block] = self._weights.of(block)
        with torch.no_grad():
            self._gradients[block] = averaged(module_block, ranked)
        if self._held.clipping is not None and len(self._gradients) < len(self.blocks):
            return []
        gradients, self._gradients = self._gradients, {}
        self._held.put_back(gradients)
        self._held.update(gradients, self.step)
        for updated in gradients:
            new = self._weights.updated(updated)
            if isinstance(new, CodedWeights):
                self._coded[updated] = new
            self._updated[updated] = weights = new.weights if isinstance(new, CodedWeights) else new
            counted = self._counted[self.step, updated]
            left_out = [
                rank for rank, seat in self._seats.items() if seat.takes_part(self.step) and rank not in counted
            ]
            self._listener.updated(self.step, updated, counted, left_out, weights)
        if len(self._updated) == len(self.blocks):
            self._listener.stepped(self.step + 1)
        return [
            self._merged(rank, self.step, updated)
            for updated in gradients
            for rank, seat in self._seats.items()
            if (self.step, updated) in seat.awaited
        ]

    def _end_step(self) -> None:
        self._last, self._updated, self._before = self._before, {}, {}
        self.step += 1
        oldest = self.step - self._behind
        self._counted = {key: ranks for key, ranks in self._counted.items() if key[0] >= oldest}

    def _merged(self, rank: int, step: int, block: int) -> Merged:
        seat, of_now = self._seats[rank], self._updated.get(block) if step == self.step else None
        seat.awaited.discard((step, block))
        version, weights = (self.step + 1, of_now) if of_now is not None else self._beginning(block, step + 1)
        had, seat.has[block] = seat.has.get(block), version
        coded = self._coded.get(block)
        is_next = coded is not None and coded.weights is weights and had == version - 1
        return Merged(rank, step, block, coded if coded is not None and is_next else weights)
