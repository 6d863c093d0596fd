"""An open session: the request that opened it, the cloud's blocks in training, the edge that is attached, and its figures."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from cloud_trainer.sessions.attachment import Attachment
from cloud_trainer.sessions.cloud_training import CloudTraining
from cloud_trainer.sessions.measuring import measured_step
from cloud_trainer.sessions.memory import SessionMemory
from shared.errors import ProtocolError
from shared.training import block_state
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


class Session:
    """One session from its opening to its end."""

    def __init__(
        self, session_id: str, request: OpenSessionRequest, training: CloudTraining, memory: SessionMemory
    ) -> None:
        """request: the one that opened the session."""
        self.id = session_id
        self.request = request
        self.training = training
        self.memory = memory
        self.attachment = Attachment(session_id)
        self.statistics = SessionStatistics()
        self.measured = False
        """Whether a measurement has changed the weights, so that they must not be trained."""
        self.forgotten = False
        """Whether it is closed for good: nothing is stored from which it could be resumed."""

    def check_named(self, session_id: str) -> None:
        """Refuse a message that names another session than the stream that it came on. Raises ProtocolError."""
        if session_id != self.id:
            raise ProtocolError(f"a message for session {session_id[:40]!r} came on a stream of session {self.id!r}")

    def check_arriving(self, block: int) -> int:
        """`block` if its state may be brought now. Raises ProtocolError or StatusError otherwise."""
        blocks, first = self.training.chain.blocks, self.training.stage.first
        if block >= len(blocks):
            raise ProtocolError(f"there is no block {block}; the model has {len(blocks)} blocks, from 0")
        if self.attachment.begun and block >= first and not block_state.is_static(blocks[block]):
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"block {block} cannot be replaced now: once session {self.id} trains, only blocks of the edge can be "
                f"brought, 0 to {first - 1}",
            )
        return block

    def take_block(self, index: int, tensors: block_state.BlockTensors) -> None:
        """Take a block's state: at once before training, aside while it goes on. Raises ProtocolError if it does not fit."""
        self.training.take_block(index, tensors, aside=self.attachment.begun)

    def migrate(self, deployment: Deployment, next_step: int, fence: Fence) -> None:
        """Move the cut, as `CloudTraining.migrate` does, for the edge that attached last. Raises StatusError for any other."""
        self.attachment.check_fence(fence)
        self.training.migrate(deployment, next_step)

    def measuring(self, cut: int, repeats: int) -> Callable[[], float]:
        """What measures the cloud's blocks at a cut (`measured_step`). Raises StatusError when the session trains."""
        if self.attachment.begun:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {self.id} trains; measuring would change its weights"
            )
        step = measured_step(self.training, cut, repeats)
        self.measured = True
        return step
