"""The blocks of one session: those held here, and uploaded ones that wait for another placement."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import grpc

from cloud_trainer.sessions.memory import SessionMemory
from shared.errors import ModelError, ProtocolError
from shared.training import block_state
from shared.training.block_state import BlockTensors
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import CopiedPart, copy_part
from shared.transport.rpc.status import Kind, StatusError


class SessionBlocks:
    """The blocks of a session. It tells the session's memory how many bytes the waiting blocks take."""

    def __init__(self, worker: str, held: HeldBlocks, memory: SessionMemory) -> None:
        """worker: the name of this trainer's worker."""
        self.held = held
        self.worker = worker
        self.memory = memory
        self._arriving: dict[int, BlockTensors] = {}
        """States of the waiting blocks, by index."""

    def digests(self) -> list[int]:
        """Compute the digests of what training changes in each block of the model, in order."""
        return [block_state.digest(block) for block in self.held.chain.blocks]

    def frozen_digests(self) -> list[int]:
        """Compute the digests of the frozen parameters of each block of the model, in order."""
        return [block_state.frozen_digest(block) for block in self.held.chain.blocks]

    def check_frozen(self, index: int) -> None:
        """Refuse a block that training has changed in its frozen parameters. Computes. Raises StatusError."""
        with _told_of_the_model():
            self.held.check_frozen(index)

    def copied(self) -> CopiedPart:
        """Copy all that training changes, for a checkpoint. Computes. Raises as `check_frozen` does, of every block."""
        with _told_of_the_model():
            return copy_part(self.held)

    def check_there(self, index: int) -> int:
        """Return `index` if the model has that block. Raises ProtocolError otherwise."""
        if index >= (count := len(self.held.chain.blocks)):
            raise ProtocolError(f"there is no block {index}; the model has {count} blocks, from 0")
        return index

    def is_static(self, index: int) -> bool:
        """Tell whether training leaves a block unchanged. Raises ProtocolError for a block that the model lacks."""
        return block_state.is_static(self.held.chain.blocks[self.check_there(index)])

    def check_held(self, index: int) -> int:
        """Return `index` if the state of that block is here. Raises ProtocolError otherwise."""
        if index not in self.held.indices:
            raise ProtocolError(
                f"worker {self.worker!r} does not hold block {index}; it holds {list(self.held.indices)}"
            )
        return index

    def take(self, index: int, tensors: BlockTensors, *, aside: bool) -> None:
        """Store a block's state: at once, or aside until another placement. Computes.

        Raises ProtocolError if it does not fit.
        """
        if aside:
            self.held.check_block(index, tensors)
            self._arriving[index] = tensors
            self._count()
        elif index in self.held.indices:
            self.held.load_block(index, tensors)
        else:
            block_state.restore(self.held.chain.blocks[index], None, None, tensors)

    def lacks(self, index: int) -> bool:
        """Tell whether an expected block is neither uploaded nor known otherwise."""
        return index not in self._arriving and not block_state.is_static(self.held.chain.blocks[index])

    def take_in(self, wanted: Collection[int]) -> None:
        """Make room for these blocks, in their uploaded states, beside those that are held. Computes. Raises as
        `HeldBlocks.take_in` does."""
        self.held.let_go()
        self.held.take_in(wanted, self._arrived(wanted))

    def hold(self, wanted: Collection[int]) -> None:
        """Hold these blocks from now on, in their uploaded states. Computes. Raises as `HeldBlocks.hold` does."""
        self.held.hold(wanted, self._arrived(wanted))
        self.forget_arrived()

    def forget_arrived(self) -> None:
        """Forget the uploaded blocks that wait. Other workers have trained them further, so they are out of date."""
        if self._arriving:
            self._arriving.clear()
            self._count()

    def _arrived(self, wanted: Collection[int]) -> dict[int, BlockTensors]:
        return {index: state for index, state in self._arriving.items() if index in wanted}

    def _count(self) -> None:
        waiting = (tensor for state in self._arriving.values() for tensor in state.values())
        self.memory.set_aside(sum(tensor.nbytes for tensor in waiting))


@contextmanager
def _told_of_the_model() -> Iterator[None]:
    """Say in the status that the model is at fault: no later attempt would do."""
    try:
        yield
    except ModelError as failure:
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, str(failure), kind=Kind.MODEL) from failure
