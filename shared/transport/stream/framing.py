"""Tensors as chunks and back, with every size checked before memory is taken."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shared.errors import ProtocolError
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader

MAX_DIMENSIONS = 8
"""Of a tensor (see `TensorHeader.shape`); refused before anybody walks through a million of them."""


@dataclass(frozen=True, slots=True)
class WireTensor:
    """One encoded tensor with its place in the training, as it is sent and as it has arrived."""

    step: int
    role: Role.ValueType
    deployment_epoch: int
    header: TensorHeader
    payload: memoryview
    sender_nanoseconds: int = 0
    """When its sender began to send it, by the sender's clock; of a tensor that has arrived."""


def chunks(tensor: WireTensor, chunk_bytes: int, sender_nanoseconds: int = 0) -> Iterator[tuple[Frame, memoryview]]:
    """Cut a tensor into frames of at most `chunk_bytes`, payloads being views of it. An empty tensor is one frame.

    sender_nanoseconds: when the sender began, where the receiver wants to know.
    """
    for offset in range(0, max(len(tensor.payload), 1), chunk_bytes):
        frame = Frame(step=tensor.step, role=tensor.role, deployment_epoch=tensor.deployment_epoch, offset=offset)
        if offset == 0:
            frame.tensor.CopyFrom(tensor.header)
            frame.sender_nanoseconds = sender_nanoseconds
        yield frame, tensor.payload[offset : offset + chunk_bytes]


class Assembler:
    """Puts the chunks of one tensor after the other together.

    accept: says, from the announcement alone, whether the tensor may be sent now; raises ProtocolError or Refusal.
    allocate: gives memory for as many bytes as were announced, after `accept` agreed.
    """

    def __init__(self, accept: Callable[[Frame], None], allocate: Callable[[int], memoryview]) -> None:
        self._accept = accept
        self._allocate = allocate
        self._first: Frame | None = None
        self._buffer = memoryview(b"")
        self._received = 0

    @property
    def at_boundary(self) -> bool:
        """Whether no tensor is half received."""
        return self._first is None

    def add(self, frame: Frame, payload: memoryview | bytes) -> WireTensor | None:
        """Take one chunk; returns the tensor when it was the last one.

        Raises ProtocolError for a chunk that does not follow the one before it or exceeds what was announced.
        """
        due = 0 if self._first is None else self._received
        first = self._first or frame
        if (frame.step, frame.role, frame.deployment_epoch) != (first.step, first.role, first.deployment_epoch):
            raise ProtocolError(
                f"a chunk of step {frame.step} came in the middle of the {role_name(first.role)} of step {first.step}"
            )
        what = f"the {role_name(first.role)} of step {first.step}"
        if frame.offset != due:
            raise ProtocolError(f"{what}: a chunk at byte {frame.offset} came where byte {due} was due")
        if frame.HasField("tensor") != (due == 0):
            raise ProtocolError(f"{what}: a tensor is announced in its first chunk, and nowhere else")
        end, announced = due + len(payload), first.tensor.encoded_bytes
        if end > announced or (not payload and announced > 0):
            raise ProtocolError(
                f"{what}: a chunk of {len(payload)} bytes at byte {due} does not fit the {announced} bytes announced"
            )
        if self._first is None:
            dimensions = max(len(frame.tensor.shape), len(frame.tensor.strides))
            if dimensions > MAX_DIMENSIONS:
                raise ProtocolError(
                    f"{what}: {dimensions} dimensions are announced; a tensor has {MAX_DIMENSIONS} at most"
                )
            self._accept(frame)
            self._buffer = self._allocate(announced)
            self._first = frame
        self._buffer[due:end] = payload
        self._received = end
        if end < announced:
            return None
        self._first = None
        return WireTensor(
            first.step, first.role, first.deployment_epoch, first.tensor, self._buffer, first.sender_nanoseconds
        )


def role_name(role: Role.ValueType) -> str:
    """What a role is called in a sentence; a number that the contract has not is named as that."""
    try:
        return Role.Name(role).removeprefix("ROLE_").lower().replace("_", " ")
    except ValueError:
        return f"tensor of unknown role {role}"
