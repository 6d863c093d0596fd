"""An open session: the request that opened it, the blocks that it holds, the edge that is attached, and its figures."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from torch import Tensor

from cloud_trainer.sessions.attachment import Attachment
from cloud_trainer.sessions.cloud_training import CloudTraining
from cloud_trainer.sessions.measuring import measured_step
from cloud_trainer.sessions.memory import Batches, SessionMemory
from shared.errors import ProtocolError
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, Fence, OpenSessionRequest


@dataclass(slots=True)
class SessionStatistics:
    """The figures of a session that metrics and status show."""

    received_bytes: int = 0
    """Payload of tensors received in training."""
    sent_bytes: int = 0
    """Payload of tensors sent in training."""
    loss: float = 0.0
    """The loss of the last step; 0 before the first."""
    downlink_bits_per_second: float = 0.0
    """The measured rate of the downlink; 0 while it is not known."""


class Session(ABC):
    """One session from its opening to its end, whatever shares the work in it."""

    def __init__(self, session_id: str, request: OpenSessionRequest, held: HeldBlocks, memory: SessionMemory) -> None:
        """request: the one that opened the session."""
        self.id = session_id
        self.request = request
        self.held = held
        self.memory = memory
        self.attachment = Attachment(session_id)
        self.statistics = SessionStatistics()
        self.measured = False
        """Whether a measurement has changed the weights, so that they must not be trained."""
        self.forgotten = False
        """Whether it is closed for good: nothing is stored from which it could be resumed."""

    @property
    @abstractmethod
    def next_step(self) -> int:
        """The step that comes next: all earlier ones are in the weights."""

    @property
    @abstractmethod
    def lineage(self) -> int:
        """The session term in which it last went back to a checkpoint; 0 before the first time."""

    @property
    @abstractmethod
    def deployment(self) -> Deployment:
        """What is in force, as far as a deployment says it."""

    @property
    def shown_blocks(self) -> str:
        """The blocks that are held under a placement, for people; empty for a session of two workers at a cut."""
        return ""

    @property
    @abstractmethod
    def batches(self) -> Batches:
        """What may be in flight."""

    @property
    def max_staleness(self) -> int:
        """The largest K that the session may have with what is in force."""
        return self.memory.max_staleness(self.batches.each_bytes)

    @abstractmethod
    def copy(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A copy of the state between two steps, to be written while training goes on: facts and tensors."""

    @abstractmethod
    def check_arriving(self, block: int) -> int:
        """`block` if its state may be brought now. Raises ProtocolError or StatusError otherwise."""

    @abstractmethod
    def take_block(self, index: int, tensors: block_state.BlockTensors) -> None:
        """Take a block's state: at once before training, aside while it goes on. Raises ProtocolError if it does not fit."""

    @abstractmethod
    def check_owned(self, block: int) -> int:
        """`block` if its state is here. Raises ProtocolError otherwise."""

    async def end(self) -> None:
        """End what is attached. When this returns, nothing of the session is being computed."""
        await self.attachment.end()

    def block_digests(self) -> list[int]:
        """Digests of all blocks, in order."""
        return [block_state.digest(block) for block in self.held.chain.blocks]

    def check_index(self, block: int) -> int:
        """`block` if the model has it. Raises ProtocolError otherwise."""
        if block >= (count := len(self.held.chain.blocks)):
            raise ProtocolError(f"there is no block {block}; the model has {count} blocks, from 0")
        return block

    def check_named(self, session_id: str) -> None:
        """Refuse a message that names another session than the stream that it came on. Raises ProtocolError."""
        if session_id != self.id:
            raise ProtocolError(f"a message for session {session_id[:40]!r} came on a stream of session {self.id!r}")

    def measuring(self, cut: int, repeats: int) -> Callable[[], float]:
        """What measures blocks from a cut on (`measured_step`). Raises StatusError when the session trains."""
        if self.attachment.begun:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {self.id} trains; measuring would change its weights"
            )
        step = measured_step(self.held, cut, repeats)
        self.measured = True
        return step

    def check_unmeasured(self) -> None:
        """Refuse to train what a measurement has changed. Raises StatusError."""
        if self.measured:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {self.id} was measured, which has changed its weights"
            )


def cut_session(session: Session) -> "CutSession":
    """The session as one of two workers at a cut. Raises StatusError where it was opened with a placement."""
    refuse_placement(session.request)
    assert isinstance(session, CutSession), "a session is opened with a placement or with a deployment"
    return session


def refuse_placement(request: OpenSessionRequest) -> None:
    """Refuse what is for sessions of two workers at a cut alone. Raises StatusError."""
    if request.HasField("placement"):
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "the session was opened with a placement; this call is for sessions that were opened with a deployment",
        )


class CutSession(Session):
    """A session of two workers at a cut, which a training stream joins."""

    def __init__(
        self, session_id: str, request: OpenSessionRequest, training: CloudTraining, memory: SessionMemory
    ) -> None:
        super().__init__(session_id, request, training.held, memory)
        self.training = training

    @property
    def next_step(self) -> int:
        """See `Session`."""
        return self.training.next_step

    @property
    def lineage(self) -> int:
        """See `Session`."""
        return self.training.lineage

    @property
    def deployment(self) -> Deployment:
        """See `Session`."""
        return self.training.deployment

    @property
    def batches(self) -> Batches:
        """See `Session`."""
        return self.training.batches

    def copy(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """See `Session`."""
        return self.training.copy()

    def check_owned(self, block: int) -> int:
        """See `Session`."""
        return self.training.check_owned(block)

    def check_arriving(self, block: int) -> int:
        """See `Session`."""
        blocks, first = self.training.chain.blocks, self.training.stage.first
        self.check_index(block)
        if self.attachment.begun and block >= first and not block_state.is_static(blocks[block]):
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"block {block} cannot be replaced now: once session {self.id} trains, only blocks of the edge can be "
                f"brought, 0 to {first - 1}",
            )
        return block

    def take_block(self, index: int, tensors: block_state.BlockTensors) -> None:
        """See `Session`."""
        self.training.take_block(index, tensors, aside=self.attachment.begun)

    def migrate(self, deployment: Deployment, next_step: int, fence: Fence) -> None:
        """Move the cut, as `CloudTraining.migrate` does, for the edge that attached last. Raises StatusError for any other."""
        self.attachment.check_fence(fence)
        self.training.migrate(deployment, next_step)
