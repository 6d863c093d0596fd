"""The state of all blocks that a worker holds, as data: its part of a checkpoint, copied at a step boundary and put back.

Blocks without trainable parameters and buffers are left out: training does not change them, and a rebuilt model has
them again. Random states are left out, too: they follow from seed, step and block (`random_state`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import safetensors
import safetensors.torch
from torch import Tensor

from shared.errors import StorageError
from shared.model.chain import Chain
from shared.training import block_state
from shared.training.block_state import BlockTensors
from shared.training.copied_features import CopiedFeatures
from shared.training.held_blocks import HeldBlocks

KEPT = -1
"""Number under which the states of a checkpoint have the features that are kept (`HeldBlocks.kept`): no block has it."""


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A copy of all that a worker has in a checkpoint."""

    blocks: dict[str, Tensor]
    """See `copy_state`."""
    features: CopiedFeatures | None = None
    """None where no features are kept."""


def copy_part(held: HeldBlocks) -> CopiedPart:
    """Copy, into this machine's memory, all that training changes. Raises as `copy_state` does."""
    return CopiedPart(copy_state(held), None if held.kept is None else held.kept.copy())


def copy_state(held: HeldBlocks) -> dict[str, Tensor]:
    """A copy, in this machine's memory, of what training changes in blocks, by `BLOCK/` and the names of `block_state.collect`.

    Raises ModelError where training has changed what it must not: see `HeldBlocks.check_frozen`.
    """
    held.check_frozen()
    return {
        f"{block.index}/{name}": tensor.to("cpu", copy=True)
        for block in held.blocks
        if not block_state.is_static(block)
        for name, tensor in held.block_tensors(block.index).items()
    }


def states_in(data: bytes) -> dict[int, BlockTensors]:
    """The state of each block in a part of a checkpoint. Raises StorageError for bytes that `serialize` would not write."""
    try:
        states: dict[int, BlockTensors] = {}
        for entry, tensor in safetensors.torch.load(data).items():
            index, _, name = entry.partition("/")
            states.setdefault(int(index), {})[name] = tensor
    except (safetensors.SafetensorError, ValueError, KeyError) as cause:
        raise StorageError(f"a checkpoint's file is no safetensors file of blocks: {cause}") from cause
    return states


def changing_blocks(chain: Chain) -> list[int]:
    """The blocks that a checkpoint has, because training changes them."""
    return [block.index for block in chain.blocks if not block_state.is_static(block)]


def put_back(held: HeldBlocks, indices: Iterable[int], states: Mapping[int, BlockTensors]) -> None:
    """Hold these blocks from now on, in the states that a checkpoint has of them, and the features that it has under `KEPT`.

    Raises StorageError when one is missing, ProtocolError when a tensor does not fit.
    """
    indices = list(indices)
    needed = set(indices).intersection(changing_blocks(held.chain))
    if missing := sorted(needed - states.keys()):
        raise StorageError(f"the checkpoint here has blocks {sorted(states)}; blocks {missing} are missing")
    held.hold(indices, {index: states[index] for index in needed})
    if held.kept is not None:
        held.kept.put_back(states.get(KEPT, {}))
