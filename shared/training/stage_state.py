"""The state of a stage as data: what a checkpoint holds of one side, copied at a step boundary, and put back.

Blocks without trainable parameters and buffers are left out: training does not change them, so whoever builds the model
again has them again. Random states need no place: they follow from seed, step and block (`random_state`).
"""

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from shared.errors import StorageError
from shared.training import block_state
from shared.training.stage import Stage


def copy_state(stage: Stage) -> dict[str, Tensor]:
    """A copy, in this machine's memory, of all that training changes: `BLOCK/` and the names of `block_state.collect`."""
    return {
        f"{block.index}/{name}": tensor.to("cpu", copy=True)
        for block in stage.blocks
        if not block_state.is_static(block)
        for name, tensor in stage.block_tensors(block.index).items()
    }


def to_bytes(state: dict[str, Tensor]) -> bytes:
    """The copy as a safetensors file."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in state.items()})


def put_back(stage: Stage, first: int, stop: int, data: bytes) -> None:
    """Run blocks [first, stop) from now on, in the state that `data` holds.

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
    chain_blocks = stage.chain.blocks[first:stop]
    expected = {str(block.index) for block in chain_blocks if not block_state.is_static(block)}
    if states.keys() != expected:
        raise StorageError(f"a checkpoint holds blocks {sorted(states)}; blocks {sorted(expected)} are needed")
    stage.move(first, stop, {int(index): state for index, state in states.items()})


def element_bytes(tensor: Tensor) -> memoryview:
    """The elements of a tensor in their order, as they lie in memory."""
    data: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data
