"""The blocks of one session: those that are held here, and those that were uploaded and wait for another placement."""

from collections.abc import Collection

from cloud_trainer.sessions.memory import SessionMemory
from shared.errors import ProtocolError
from shared.training import block_state
from shared.training.block_state import BlockTensors
from shared.training.held_blocks import HeldBlocks


class SessionBlocks:
    """Tells the session's memory how many bytes the blocks take that wait."""

    def __init__(self, worker: str, held: HeldBlocks, memory: SessionMemory) -> None:
        """worker: which one this trainer is."""
        self.held = held
        self.worker = worker
        self._memory = memory
        self._arriving: dict[int, BlockTensors] = {}
        """The states of the blocks that wait, by index."""

    def digests(self) -> list[int]:
        """Digests of all blocks of the model, in order. Computes."""
        return [block_state.digest(block) for block in self.held.chain.blocks]

    def check_there(self, index: int) -> int:
        """`index` if the model has that block. Raises ProtocolError otherwise."""
        if index >= (count := len(self.held.chain.blocks)):
            raise ProtocolError(f"there is no block {index}; the model has {count} blocks, from 0")
        return index

    def is_static(self, index: int) -> bool:
        """Whether training leaves a block as it is. Raises ProtocolError for a block that the model has not."""
        return block_state.is_static(self.held.chain.blocks[self.check_there(index)])

    def check_held(self, index: int) -> int:
        """`index` if the state of that block is here. Raises ProtocolError otherwise."""
        if index not in self.held.indices:
            raise ProtocolError(
                f"worker {self.worker!r} does not hold block {index}; it holds {list(self.held.indices)}"
            )
        return index

    def take(self, index: int, tensors: BlockTensors, *, aside: bool) -> None:
        """Take a block's state: at once, or aside until another placement. Computes.

        Raises ProtocolError if it does not fit.
        """
        block = self.held.chain.blocks[index]
        if aside and not block_state.is_static(block):
            self.held.check_block(index, tensors)
            self._arriving[index] = tensors
            self._count()
        elif index in self.held.indices:
            self.held.load_block(index, tensors)
        else:
            block_state.restore(block, None, None, tensors)

    def lacks(self, index: int) -> bool:
        """Whether a block that is to come has not been uploaded, and is not known either."""
        return index not in self._arriving and not block_state.is_static(self.held.chain.blocks[index])

    def hold(self, wanted: Collection[int]) -> None:
        """Hold these blocks from now on, in the states that were uploaded. Computes. Raises as `HeldBlocks.hold` does."""
        self.held.hold(wanted, {index: state for index, state in self._arriving.items() if index in wanted})
        self.forget_arrived()

    def forget_arrived(self) -> None:
        """Forget what was uploaded and waits: others have trained these blocks further, so it is out of date."""
        if self._arriving:
            self._arriving.clear()
            self._count()

    def _count(self) -> None:
        waiting = (tensor for state in self._arriving.values() for tensor in state.values())
        self._memory.set_aside(sum(tensor.nbytes for tensor in waiting))
