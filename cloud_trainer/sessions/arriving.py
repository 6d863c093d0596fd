"""Blocks of the edge that have come to the trainer and wait for the cut to move."""

from cloud_trainer.sessions.memory import SessionMemory
from shared.training.block_state import BlockTensors


class ArrivingBlocks:
    """The blocks that wait, by index, and what they take of the session's memory."""

    def __init__(self, memory: SessionMemory) -> None:
        self.blocks: dict[int, BlockTensors] = {}
        self._memory = memory

    def put(self, index: int, tensors: BlockTensors) -> None:
        """Keep the state of a block, instead of what came of it before."""
        self.blocks[index] = tensors
        self._count()

    def forget(self) -> None:
        """The edge has trained its blocks further: forget what has come, which is stale now."""
        if self.blocks:
            self.blocks.clear()
            self._count()

    def _count(self) -> None:
        self._memory.set_aside(sum(tensor.nbytes for state in self.blocks.values() for tensor in state.values()))
