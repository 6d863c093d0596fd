"""The weights and the optimizer of a group, from its first step on: they are read, updated and copied on the compute thread."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from torch import Tensor

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group import Group, GroupListener, Merged
from cloud_trainer.groups.group_weights import GroupWeights
from cloud_trainer.groups.lives import Life
from cloud_trainer.groups.refusals import elsewhere
from cloud_trainer.sessions.shared_thread import ThreadLane
from shared.execution.shared_blocks import BlockPart
from shared.execution.step_in_flight import Parcel
from shared.placement import BlockSlice
from shared.training.block_state import BlockTensors, element_bytes
from shared.training.step_log import StepLog

P = ParamSpec("P")
T = TypeVar("T")


class Snapshot(NamedTuple):
    """A copy of all that training changes, before a step."""

    step: int
    state: dict[str, Tensor]
    rate_drops: int
    """Times that the learning rate was lowered before it."""


class GroupFigures:
    """Counts of a group at this trainer, by rank, since the trainer has begun."""

    def __init__(self) -> None:
        self.left_out = Counter[int]()
        """Updates of slices without the rank."""
        self.late = Counter[int]()
        """Gradients of the rank that came too late to count."""
        self.residuals_lost = Counter[int]()
        """Times that the rank began again without what its codec had left of its gradients."""
        self.waited = defaultdict[int, float](float)
        """Seconds from the last gradient of the rank in a step until all blocks of the step are updated."""


class Merging(GroupListener):
    """The running part of a group. Used on the event loop, one call at a time."""

    def __init__(
        self,
        weights: GroupWeights,
        agreement: Agreement,
        lane: ThreadLane,
        config: GroupConfig,
        life: Life,
        figures: GroupFigures,
        step_log: StepLog | None = None,
    ) -> None:
        """weights: of the blocks of the group that are here, with which the life begins. step_log: gets every update."""
        self.agreement = agreement
        self._name = config.name
        self._figures = figures
        self._step_log = step_log
        self.life = life
        self._weights = weights
        self._lane = lane
        self._copied: Snapshot | None = None
        """The copy that waits to be taken."""
        leaves_out = config.leave_out_seconds is not None
        first = life.first_step
        there = [rank for rank, joined in life.members.items() if joined <= first]
        self._group = Group(weights, there, agreement.staleness, first, self, leaves_out=leaves_out)
        for rank in life.members.keys() - there:
            self._group.join(rank, life.members[rank])
        self._given: dict[int, dict[int, float]] = defaultdict(dict)
        """Moment of the last gradient by rank, by step that is not done. Of the compute thread."""
        self.copied_step = life.first_step
        """The step of the newest copy, or the first one."""

    @property
    def step(self) -> int:
        """Return the oldest step that is not done."""
        return self._group.step

    @property
    def is_done(self) -> bool:
        """Tell whether all steps of the group are done."""
        return self.step >= self.agreement.steps

    def check_can_begin_at(self, step: int) -> None:
        """Refuse a step at which a member cannot begin here any more. Raises NotNowError."""
        if not self.life.first_step <= step <= self.step or step < self.step - self.agreement.staleness - 1:
            raise elsewhere(self._name, f"it is at step {self.step}, and no member can begin at step {step}")

    async def on_thread(self, what: Callable[Concatenate[Group, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have the group do something on its thread. what: is called with the group."""
        return await self._lane.run(what, self._group, *args, **kwargs)

    async def is_untouched(self) -> bool:
        """Tell whether nothing was updated in this life."""
        first_step = self.life.first_step
        return await self.on_thread(lambda group: group.step == first_step and group.is_between_steps)

    async def take_seat(self, rank: int, step_elsewhere: int) -> tuple[int, dict[int, BlockPart]]:
        """Have a member begin, with nothing but what it gets here: at the step of this group, or an earlier one elsewhere.

        Returns that step, and by block the weights with which it begins.
        """
        return await self._lane.aside(self._take_seat, rank, step_elsewhere)

    def _take_seat(self, rank: int, step_elsewhere: int) -> tuple[int, dict[int, BlockPart]]:
        step = min(self._group.take_seat(rank), step_elsewhere)
        return step, self._group.first_weights(rank, step)

    async def merge(self, rank: int, one: Parcel) -> list[Merged]:
        """Take a gradient; returns the weights that members wait for. Raises as `Group.merge` does."""
        assert isinstance(one.load, Mapping), "what goes to a group is a block's"
        return await self._lane.run(self._merge, rank, one, dict(one.load), monotonic())

    def _merge(self, rank: int, one: Parcel, part: dict[str, Tensor], came_seconds: float) -> list[Merged]:
        if self.step <= one.step <= self.step + self.agreement.staleness:
            self._given[one.step][rank] = came_seconds
        told = one.samples, one.label_count, one.rate_drops
        return self._group.merge(rank, one.step, one.crossing.of_block, part, *told)

    async def end(self, steps: int) -> list[int]:
        """Have the group end after so many steps, which are done; returns the ranks that have given gradients of later ones.

        A copy is made, which says so. Raises ProtocolError where the group is elsewhere.
        """
        return await self._lane.run(self._end, steps)

    def _end(self, steps: int) -> list[int]:
        beyond = self._group.end(steps)
        self.agreement = self.agreement.lasting(steps)
        self._copied, self.copied_step = self._copy(steps), steps
        return beyond

    @property
    def ranks(self) -> dict[int, int]:
        """By rank that takes part in the present step or will, the first step in which it does."""
        return self._group.ranks

    @property
    def staying(self) -> dict[int, int]:
        """By rank that has not told its last step, the first step in which it takes part."""
        of_before = {rank: first for rank, first in self.life.members.items() if first <= self.life.first_step}
        return {
            rank: of_before.get(rank, first) if first == self.life.first_step else first
            for rank, first in self._group.staying.items()
        }

    def missing(self) -> list[int]:
        """List the ranks for which the present step waits."""
        return self._group.missing()

    async def awaited(self) -> tuple[int, list[int]]:
        """Return the present step, and the ranks for which it waits."""
        return await self.on_thread(lambda group: (group.step, group.missing()))

    def held_up(self) -> list[BlockSlice]:
        """List the slices of the present step of which some ranks have given the gradient and others are waited for."""
        return self._group.held_up()

    async def averages(self, block: int) -> BlockTensors:
        """Copy the averages of the weights of a block, named as in its state; none where none are kept."""
        return await self._lane.aside(self._weights.averages, block)

    def take_copy(self) -> Snapshot | None:
        """Return the copy that was made since the last call, if there is one."""
        copied, self._copied = self._copied, None
        return copied

    async def copy_now(self) -> Snapshot | None:
        """Return the copy that waits to be taken, or else one of the present state.

        Returns None if anything of the present step is updated already, or if no step was done since the last copy.
        """
        return await self._lane.aside(self._copied_now)

    def _copied_now(self) -> Snapshot | None:
        # An update that nobody waits for any more may have come before this on the thread, so it is asked here.
        if self._copied is not None or not self._group.is_between_steps or self.step == self.copied_step:
            return self.take_copy()
        self.copied_step = self.step
        return self._copy(self.step)

    def _copy(self, step: int) -> Snapshot:
        return Snapshot(step, self._weights.copied(), self._weights.held.rate_drops)

    def stepped(self, step: int) -> None:
        """Count what each rank has waited for the others, and copy the state before a step, if a checkpoint is due."""
        now = monotonic()
        for rank, came_seconds in self._given.pop(step - 1, {}).items():
            self._figures.waited[rank] += now - came_seconds
        if step % self.life.checkpoint_steps == 0 or step == self.agreement.steps:
            self._copied, self.copied_step = self._copy(step), step

    def updated(
        self, step: int, one: BlockSlice, ranks: Sequence[int], left_out: Sequence[int], weights: BlockPart
    ) -> None:
        """Count the ranks that were left out, and log the update."""
        self._figures.left_out.update(left_out)
        if self._step_log is not None:
            self._step_log.merged(step, one, ranks, *(element_bytes(weights[name]) for name in sorted(weights)))

    def dropped(self, rank: int) -> None:
        """Count a gradient that came too late."""
        self._figures.late[rank] += 1
