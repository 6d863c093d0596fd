"""The versions of a group's weights that its members may lack: as the last step began, as the present one did, and after it.

A version is the step that begins with it.
"""

from typing import NamedTuple

from shared.execution.group_weights import GroupWeights
from shared.execution.shared_blocks import BlockPart, CodedWeights
from shared.placement import BlockSlice


class Version(NamedTuple):
    """The weights of a slice, and the step that begins with them."""

    step: int
    weights: BlockPart


class GroupVersions:
    """The weights of slices as members get them. Belongs to the thread of the group."""

    def __init__(self, weights: GroupWeights, first_step: int) -> None:
        """weights: before `first_step`."""
        self.step = first_step
        """The present step."""
        self._weights = weights
        self._newest: dict[BlockSlice, BlockPart] = {}
        """By slice that any step has updated, the weights after the last update."""
        self._before: dict[BlockSlice, BlockPart] = {}
        """By slice that the present step updates, the weights with which the step began."""
        self._last: dict[BlockSlice, BlockPart] = {}
        """By slice, the weights with which the step before began, until this one updates any."""
        self._coded: dict[BlockSlice, CodedWeights] = {}
        """By slice, the weights after its newest update, where they go by a codec."""

    def begin_update(self, one: BlockSlice) -> None:
        """Keep the weights with which the step began, of a slice that it is about to update."""
        self._last = {}  # no gradient of the last step counts any more, at any trainer
        self._before[one] = self._present(one)

    def updated(self, one: BlockSlice) -> BlockPart:
        """Note that a slice is updated, and return the weights that members then have."""
        new = self._weights.updated(one)
        if isinstance(new, CodedWeights):
            self._coded[one] = new
        self._newest[one] = weights = new.weights if isinstance(new, CodedWeights) else new
        return weights

    def end_step(self) -> None:
        """Have the next step be the present one: all slices are updated."""
        self._last, self._before = self._before, {}
        self.step += 1

    def newest(self, one: BlockSlice) -> Version:
        """Return a slice that the present step has updated."""
        return Version(self.step + 1, self._newest[one])

    def beginning(self, one: BlockSlice, step: int) -> Version:
        """Return a slice as a step began, the present one or the last; the oldest version that is here for an earlier one."""
        if step < self.step and (of_last := self._last.get(one)) is not None:
            return Version(self.step - 1, of_last)
        return Version(self.step, self._before.get(one) or self._present(one))

    def as_sent(self, one: BlockSlice, version: Version, had: int | None) -> BlockPart | CodedWeights:
        """Return a version as it goes to a member: by the codec, to one that has the version before. had: what it has."""
        coded = self._coded.get(one)
        is_next = coded is not None and coded.weights is version.weights and had == version.step - 1
        return coded if coded is not None and is_next else version.weights

    def _present(self, one: BlockSlice) -> BlockPart:
        return self._newest.get(one) or self._weights.of(one)
