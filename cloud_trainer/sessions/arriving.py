"""Blocks of the edge that were uploaded and wait at the trainer for the cut to move."""

from cloud_trainer.sessions.memory import SessionMemory
from shared.training.block_state import BlockTensors


class ArrivingBlocks:
    """The states of the blocks that wait, by index. Tells the session's memory how many bytes they take."""

    def __init__(self, memory: SessionMemory) -> None:
        self.blocks: dict[int, BlockTensors] = {}
        self._memory = memory

    def put(self, index: int, tensors: BlockTensors) -> None:
        """Keep the state of a block, in place of an earlier one."""
        self.blocks[index] = tensors
        self._count()

    def forget(self) -> None:
        """Forget all of them: the edge has trained its blocks further, so they are out of date."""
        if self.blocks:
            self.blocks.clear()
            self._count()

    def _count(self) -> None:
        self._memory.set_aside(sum(tensor.nbytes for state in self.blocks.values() for tensor in state.values()))
