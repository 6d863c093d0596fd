"""The state of all blocks that a worker holds, as data: its part of a checkpoint, copied at a step boundary and put back.

Blocks without trainable parameters and buffers are left out: training does not change them, and whoever builds the model
again has them again. Random states are left out, too: they follow from seed, step and block (`random_state`).
"""

from collections.abc import Collection

import safetensors
import safetensors.torch
from torch import Tensor

from shared.errors import StorageError
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks


def copy_state(held: HeldBlocks) -> dict[str, Tensor]:
    """A copy, in this machine's memory, of all that training changes, by `BLOCK/` and the names of `block_state.collect`."""
    return {
        f"{block.index}/{name}": tensor.to("cpu", copy=True)
        for block in held.blocks
        if not block_state.is_static(block)
        for name, tensor in held.block_tensors(block.index).items()
    }


def to_bytes(state: dict[str, Tensor]) -> bytes:
    """The copy as a safetensors file."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in state.items()})


def put_back(held: HeldBlocks, indices: Collection[int], data: bytes) -> None:
    """Hold these blocks from now on, in the state that `data` has.

    Raises StorageError when it is no safetensors file or not of these blocks, ProtocolError when a tensor does not fit.
    """
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as cause:
        raise StorageError(f"a checkpoint's file is no safetensors file: {cause}") from cause
    states: dict[str, dict[str, Tensor]] = {}
    for entry, tensor in tensors.items():
        index, _, name = entry.partition("/")
        states.setdefault(index, {})[name] = tensor
    expected = {str(index) for index in indices if not block_state.is_static(held.chain.blocks[index])}
    if states.keys() != expected:
        raise StorageError(f"a checkpoint holds blocks {sorted(states)}; blocks {sorted(expected)} are needed")
    held.hold(indices, {int(index): state for index, state in states.items()})
