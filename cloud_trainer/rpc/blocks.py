"""Receives blocks into a session, and sends blocks of one."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc
import structlog
import torch

from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_store import SessionStore
from cloud_trainer.sessions.shared_thread import ThreadLane
from shared.checkpoint import CheckpointName
from shared.checkpoint_wire import checkpoint_name
from shared.codec import aligned_buffer, row_of_bytes
from shared.errors import ProtocolError, StorageError
from shared.model.spec import TensorSpec
from shared.runtime import ExpectedTensor, check_announcement
from shared.tensor_wire import to_wire
from shared.training import block_state, state_file
from shared.training.block_state import BlockTensors
from shared.transport.rpc.status import Kind, StatusError
from shared.transport.stream.framing import Assembler, TensorKey, WireTensor, block_key, chunks, frozen_key
from shared.transport.stream.packets import Packet
from shared.wire.isthmus.v1.tensor_pb2 import Frame
from shared.wire.isthmus.v1.trainer_pb2 import (
    DownloadBlockRequest,
    DownloadBlockResponse,
    Fence,
    FetchBlocksRequest,
    OfferBlocksRequest,
    UploadBlockRequest,
)

_log = structlog.get_logger(__name__)


class BlockReceiver:
    """Receives one block of a session, chunk by chunk."""

    def __init__(self, session: Session, first: UploadBlockRequest) -> None:
        session.attachment.check_fence(first.fence)
        self.session = session
        self.checkpoint = named_checkpoint(first)
        """The one of which the block becomes a replica on disk; None where it comes into memory."""
        self._reserved_bytes = 0
        self._fence = first.fence
        self._assembler = Assembler(self._accept, aligned_buffer)

    def add(self, packet: Packet[UploadBlockRequest]) -> WireTensor | None:
        """Add a chunk. Returns the whole block where it was the last chunk, otherwise None."""
        self.session.check_named(packet.message.session_id)
        return self._assembler.add(packet.message.frame, packet.payload)

    def close(self) -> None:
        """Free the memory that was reserved for the chunks; called in any case."""
        self.session.memory.end_upload(self._reserved_bytes)
        del self._assembler  # which holds this receiver, and with it the session

    async def take(self, tensor: WireTensor, lane: ThreadLane) -> int:
        """Take the block that arrived. Returns the digest of the session's block."""
        return await lane.aside(self._take, tensor.key, tensor.payload)

    def _take(self, key: TensorKey, data: memoryview) -> int:
        index = key.block
        block = self.session.blocks.held.chain.blocks[index]
        if key == frozen_key(index):
            load_frozen(self.session, self._fence, index, data)
            return block_state.frozen_digest(block)
        load_block(self.session, self._fence, index, data)
        return block_state.digest(block)

    def _accept(self, frame: Frame, key: TensorKey) -> None:
        session, index = self.session, frame.block
        is_frozen = self.checkpoint is None and key == frozen_key(index)
        if self.checkpoint is not None:
            check_replica_of(session, self.checkpoint, index)
        elif is_frozen:
            session.blocks.check_there(index)
        else:
            session.check_arriving(index)
        # A replica is of the placement of its time.
        version = session.worker.placement.version if self.checkpoint is None else frame.placement_version
        held = session.blocks.held
        block, config, averaged = held.chain.blocks[index], held.recipe.optimizer_of_states, held.recipe.ema is not None
        wanted = frozen_key(index) if is_frozen else block_key(index)
        limit = (
            block_state.max_frozen_bytes(block)
            if is_frozen
            else block_state.max_serialized_bytes(block, config, averaged=averaged)
        )
        check_announcement(frame, ExpectedTensor(wanted, version, "raw", _check_bytes, limit))
        self.session.memory.begin_upload(frame.tensor.encoded_bytes)
        self._reserved_bytes += frame.tensor.encoded_bytes


def named_checkpoint(
    request: UploadBlockRequest | OfferBlocksRequest | FetchBlocksRequest | DownloadBlockRequest,
) -> CheckpointName | None:
    """The checkpoint whose blocks a call is about; None where it is about those in memory. Raises ProtocolError."""
    return checkpoint_name(request.checkpoint) if request.HasField("checkpoint") else None


def load_block(session: Session, fence: Fence, index: int, data: memoryview) -> None:
    """Take the state of a block that has come as bytes, at once or aside. Computes.

    Raises ProtocolError for a state that is none of this block's, and StatusError where another agent has the session by now.
    """
    session.attachment.check_fence(fence)
    with _loading(index):
        session.blocks.take(index, _state_in(session, index, data), aside=session.attachment.begun)


def load_frozen(session: Session, fence: Fence, index: int, data: memoryview) -> None:
    """Take the frozen parameters of a block that have come as bytes. Computes, and raises as `load_block` does."""
    session.attachment.check_fence(fence)
    with _loading(index):
        session.blocks.held.put_frozen(index, _state_in(session, index, data))


@contextmanager
def _loading(index: int) -> Iterator[None]:
    """Say of which block torch takes the state for impossible."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as cause:  # torch's error for an impossible shape
        raise ProtocolError(f"the state of block {index} cannot be loaded: {cause}") from cause


def check_replica_of(session: Session, name: CheckpointName, block: int) -> None:
    """Refuse a replica that cannot be, or that this trainer may not keep. Raises ProtocolError or ConfigError."""
    if name.lineage > session.attachment.term:
        raise ProtocolError(f"there can be no checkpoint {name} in session {session.id}")
    if session.blocks.is_static(block):
        raise ProtocolError(f"training leaves block {block} as it is, so no checkpoint has it")
    session.judge.check_replica(block)


def check_replica(session: Session, index: int, data: bytes | memoryview) -> None:
    """Refuse bytes that are no whole state of a block, before they are written. Computes. Raises ProtocolError."""
    session.blocks.held.check_block(index, _state_in(session, index, data))


def _state_in(session: Session, index: int, data: bytes | memoryview) -> BlockTensors:
    held = session.blocks.held
    recipe = held.recipe
    return block_state.from_file(
        held.chain.blocks[index], recipe.optimizer_of_states, data, averaged=recipe.ema is not None
    )


def _check_bytes(tensor: TensorSpec) -> None:
    if tensor.dtype != torch.uint8 or len(tensor.shape) != 1:
        raise ProtocolError(f"a block's state came as {tensor.dtype} {tensor.shape}; it is a row of bytes")


async def send_block(
    session: Session,
    block: int,
    chunk_bytes: int,
    lane: ThreadLane,
    *,
    weights_only: bool,
    of_group: BlockTensors | None = None,
) -> AsyncIterator[Packet[DownloadBlockResponse]]:
    """The state of a block that is held here, chunk by chunk. of_group: what the session's group has besides."""

    def serialized() -> bytes:
        session.blocks.check_frozen(block)
        tensors = session.blocks.held.block_tensors(block) | (of_group or {})
        if weights_only:
            tensors = block_state.without_optimizer(tensors)
        return state_file.serialize(tensors)

    async for packet in _send(session, block, await lane.aside(serialized), chunk_bytes):
        yield packet


async def send_stored_block(
    session: Session, store: SessionStore, name: CheckpointName, block: int, chunk_bytes: int
) -> AsyncIterator[Packet[DownloadBlockResponse]]:
    """The state of a block as it is in a checkpoint on disk, chunk by chunk. Raises StatusError where it is not."""
    try:
        data = await store.load_block(session.id, name, block)
    except StorageError as failure:
        _log.warning("block of a checkpoint not sent", session=session.id, block=block, reason=str(failure))
        raise StatusError(
            grpc.StatusCode.NOT_FOUND,
            f"block {block} of checkpoint {name} is not at {session.worker.name!r}, or is damaged",
            kind=Kind.NOT_STORED,
        ) from failure
    async for packet in _send(session, block, data, chunk_bytes):
        yield packet


async def _send(
    session: Session, index: int, data: bytes, chunk_bytes: int
) -> AsyncIterator[Packet[DownloadBlockResponse]]:
    tensor = to_wire(row_of_bytes(data), block_key(index), session.worker.placement.version)
    for frame, payload in chunks(tensor, chunk_bytes):
        yield Packet(DownloadBlockResponse(frame=frame), payload)
