"""The weights of a group: as updates leave them, and as its members have them, where these get them in fewer bits.

A codec then carries what members lack: the difference of the two, encoded once for all members. What it loses is still lacking,
and goes with the difference of the next step. So members have the same to the last bit, and never stray from what was updated.

Of the versions of the weights, members may lack three: as the last step began, as the present one did, and after it. A version
is the step that begins with it.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

from torch import Tensor

from shared.codec import codec_by_name
from shared.execution.block_slices import Slices
from shared.execution.residuals import overflow_told
from shared.execution.shared_blocks import (
    BlockPart,
    CodedWeights,
    joined,
    may_be_coded,
    moved_by,
    parted,
    weights_layout,
    weights_of,
)
from shared.model.spec import TensorSpec
from shared.placement import BlockSlice
from shared.training import block_state
from shared.training.block_state import BlockTensors
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import copy_state, put_back

_OF_MEMBERS = "members/"
"""The beginning of the names of what members have, in a checkpoint."""


class GroupWeights:
    """The weights of some blocks of a group. Belongs to one thread, and lends what nobody may write to."""

    def __init__(
        self, held: HeldBlocks, codec: str = "raw", of_members: Mapping[int, BlockTensors] | None = None
    ) -> None:
        """held: the blocks, with the weights that are updated. codec: of what members lack; "raw" keeps nothing apart.

        of_members: parameters that members have, by block; left out, they have those of the blocks. Raises ProtocolError for
        others than these blocks have.
        """
        self.held = held
        self.slices = Slices(held.chain, held.recipe, merged=True)
        """The slices in which blocks are updated."""
        self._codec = None if codec == "raw" else codec_by_name(codec)
        self._of_members: dict[BlockSlice, BlockPart] = {}
        """By slice, what members have; its tensors are never written to. Of what is left out, that of the block."""
        for index, parameters in ({} if of_members is None or self._codec is None else of_members).items():
            block = held.chain.blocks[index]
            there = weights_layout(block)
            block_state.check(block, None, there | parameters)
            moved = {name: tensor.to(there[name].device) for name, tensor in parameters.items()}
            known = weights_of(block) | moved
            for one in self.slices.numbered(index):
                self._of_members[one] = parted(known, self.slices[one])

    @classmethod
    def restored(cls, held: HeldBlocks, codec: str, states: Mapping[int, BlockTensors]) -> Self:
        """Go on as a checkpoint has it (`copied`). Raises StorageError or ProtocolError, as `put_back` does."""
        exact, of_members = _parted(states)
        put_back(held, held.indices, exact)
        return cls(held, codec, of_members)

    def of(self, one: BlockSlice) -> BlockPart:
        """Return the parameters and buffers of a slice as members have them after its last update."""
        if self._codec is None:
            return weights_of(self.held.chain.blocks[one.block], self.slices[one])
        if one not in self._of_members:
            self._of_members[one] = weights_of(self.held.chain.blocks[one.block], self.slices[one])
        return self._of_members[one]

    def updated(self, one: BlockSlice) -> BlockPart | CodedWeights:
        """Return the weights that members have after an update of a slice; `of` was asked before it."""
        block, of = self.held.chain.blocks[one.block], self.slices[one]
        if (codec := self._codec) is None:
            return weights_of(block, of)
        exact, before = weights_layout(block, of), self._of_members[one]
        lacking = {name: tensor - before[name] for name, tensor in exact.items() if _is_coded(name, tensor)}
        differences = {name: codec.encode(overflow_told(tensor)) for name, tensor in lacking.items()}
        moved = {name: moved_by(before[name], codec.decode(each)) for name, each in differences.items()}
        as_they_are = {name: tensor.clone() for name, tensor in exact.items() if name not in moved}
        self._of_members[one] = after = as_they_are | moved
        return CodedWeights(after, differences)

    def averages(self, block: int) -> BlockTensors:
        """Copy the averages of the weights of a block, named as in its state; none where none are kept."""
        state = self.held.block_tensors(block)
        return {name: tensor.clone() for name, tensor in state.items() if name.startswith("average/")}

    def copied(self) -> dict[str, Tensor]:
        """Copy all that training changes, in this machine's memory, as `copy_state` does."""
        blocks = dict.fromkeys(one.block for one in self._of_members)
        of_members = {
            f"{block}/{_OF_MEMBERS}{name}": tensor.to("cpu", copy=True)
            for block in blocks
            for name, tensor in self._joined(block).items()
            if name.startswith("parameter/")
        }
        return copy_state(self.held) | of_members

    def _joined(self, block: int) -> BlockPart:
        return self.joined(block, {one: self.of(one) for one in self.slices.numbered(block)})

    def joined(self, block: int, weights: Mapping[BlockSlice, BlockPart]) -> BlockPart:
        """Return the weights of a block by those of its slices."""
        return joined(self.held.chain.blocks[block], [weights[one] for one in self.slices.numbered(block)])


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


def _parted(states: Mapping[int, BlockTensors]) -> tuple[dict[int, BlockTensors], dict[int, BlockTensors]]:
    """Part the states of blocks from what members have of them."""
    exact: dict[int, BlockTensors] = {block: {} for block in states}
    of_members: dict[int, BlockTensors] = {block: {} for block in states}
    for block, tensors in states.items():
        for name, tensor in tensors.items():
            if name.startswith(_OF_MEMBERS):
                of_members[block][name.removeprefix(_OF_MEMBERS)] = tensor
            else:
                exact[block][name] = tensor
    return exact, {block: tensors for block, tensors in of_members.items() if tensors}


def _is_coded(name: str, tensor: Tensor) -> bool:
    return name.startswith("parameter/") and may_be_coded(TensorSpec.of(tensor))
