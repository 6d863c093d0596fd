"""A group of devices in one process: the sessions of its members, and what each trainer has of the group, without a network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from cloud_trainer.groups.group import Group, Merged
from shared.execution.counted_batches import Batch
from shared.execution.in_process_session import InProcessSession
from shared.execution.step_in_flight import Parcel
from shared.placement import BlockSlice
from shared.training.losses import BatchLoss

Give = Callable[[Parcel], object]


class InProcessGroup:
    """The members of a group, each with a session of its own, that train side by side."""

    def __init__(self, groups: Mapping[str, Group], member: Callable[[int, Give], InProcessSession]) -> None:
        """groups: by trainer. member: makes the session of a rank, which gives its gradients as it is told."""
        self._groups = groups
        self._member = member
        self._members = {rank: self._joined(rank) for rank in next(iter(groups.values())).ranks}

    def train(self, stop_step: int, batches: Mapping[int, Iterator[Batch]]) -> dict[int, list[BatchLoss]]:
        """Do the steps up to one, which every rank with batches is part of. Returns the losses by rank."""
        first = min(group.step for group in self._groups.values())
        running = {rank: self._members[rank].training(first, stop_step, each) for rank, each in batches.items()}
        self.run(list(running.values()))
        return {rank: self._members[rank].taken_losses() for rank in running}

    @staticmethod
    def run(running: Sequence[Iterator[None]]) -> None:
        """Have each go on as far as it can, in turns, until all are done."""
        left = list(running)
        while left:
            left = [each for each in left if next(each, left) is not left]

    def leave_out(self, trainer: str, one: BlockSlice) -> None:
        """Have a slice go on without the ranks that have not given its gradient in the present step."""
        group = self._groups[trainer]
        self._hand_out(group.leave_out(group.step, one))

    def leave(self, rank: int, step: int) -> None:
        """Have every trainer know that a rank takes part in no step from this one on."""
        for group in self._groups.values():
            self._hand_out(group.leave(rank, step))

    def join(self, rank: int, step: int) -> None:
        """Have every trainer wait for a rank from this step on, which all of them have promised. It begins by `begin_again`."""
        for group in self._groups.values():
            merged = group.join(rank, step)
            assert merged is not None, "no trainer goes beyond the step that it has promised"
            self._hand_out(merged)

    def member(self, rank: int) -> InProcessSession:
        """Return the session of a rank."""
        return self._members[rank]

    def begin_again(self, rank: int) -> int:
        """Replace a member by one that has nothing but the group's weights. Returns the step at which it begins."""
        step = min(group.take_seat(rank) for group in self._groups.values())
        self._members[rank] = member = self._joined(rank)
        for group in self._groups.values():
            member.take_weights(group.first_weights(rank, step))
        return step

    def _joined(self, rank: int) -> InProcessSession:
        return self._member(rank, partial(self._merge, rank))

    def _merge(self, rank: int, one: Parcel) -> None:
        assert isinstance(one.load, dict), "what goes to a group is a block's"
        group = self._groups[one.crossing.sender]
        self._hand_out(
            group.merge(rank, one.step, one.crossing.of_block, one.load, one.samples, one.label_count, one.rate_drops)
        )

    def _hand_out(self, merged_slices: Sequence[Merged]) -> None:
        for merged in merged_slices:
            self._members[merged.rank].take_merged(merged.step, merged.of, merged.weights, merged.rate_drops)
