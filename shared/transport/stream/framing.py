"""Tensors as chunks and back, with every size checked before memory is taken."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shared.bounds import MAX_DIMENSIONS, MOST_CLOCK_NANOSECONDS
from shared.errors import ProtocolError
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader

MOST_FRAMES = 16
"""Largest number of frames of a sent message. With its other fields they stay below a reader's limit (`packets`)."""
MOST_TENSORS = 8
"""The most tensors under way on one stream at one time (see `Frame`). The judge of announcements bounds their bytes."""

_OF_A_BLOCK = {Role.ROLE_BLOCK: "state", Role.ROLE_FROZEN: "frozen parameters"}


class TensorKey(NamedTuple):
    """The name of one tensor of a stream. The contract explains each number (`Frame`)."""

    step: int
    role: Role.ValueType
    block: int = 0
    slot: int = 0

    def __str__(self) -> str:
        of_block = _OF_A_BLOCK.get(self.role)
        lead = "block" if of_block else "step"
        numbers = {name: getattr(self, name) for name in ("step", "block", "slot")}
        what = f"the {of_block or role_name(self.role)} of {lead} {numbers.pop(lead)}"
        rest = ", ".join(f"{name} {number}" for name, number in numbers.items() if number)
        return f"{what} ({rest})" if rest else what


def block_key(block: int) -> TensorKey:
    """The key of a block's state."""
    return TensorKey(0, Role.ROLE_BLOCK, block)


def frozen_key(block: int) -> TensorKey:
    """The key of a block's parameters that do not learn."""
    return TensorKey(0, Role.ROLE_FROZEN, block)


def key_of(frame: Frame) -> TensorKey:
    """Return the key of the tensor that a chunk belongs to."""
    return TensorKey(frame.step, frame.role, frame.block, frame.slot)


@dataclass(frozen=True, slots=True)
class WireTensor:
    """One encoded tensor with its place in the training, as it is sent and as it has arrived."""

    key: TensorKey
    placement_version: int
    header: TensorHeader
    payload: memoryview
    sender_nanoseconds: int = 0
    """Time at which the sender began to send the tensor, by the sender's clock. Set on a tensor that has arrived."""
    batch_samples: int = 0
    """The samples of the whole batch, where several workers share it; see `Frame`."""
    rate_drops: int = 0
    """See `Frame`."""
    label_count: float = 0.0
    """See `Frame`."""


def chunks(tensor: WireTensor, chunk_bytes: int, sender_nanoseconds: int = 0) -> Iterator[tuple[Frame, memoryview]]:
    """Cut a tensor into frames with payloads of at most `chunk_bytes`, which are views of it. An empty tensor is one frame.

    sender_nanoseconds: when the sender began, where the receiver wants to know.
    """
    for (chunk,) in messages((tensor,), chunk_bytes, sender_nanoseconds):
        yield chunk


def messages(
    tensors: Iterable[WireTensor], most_bytes: int, sender_nanoseconds: int = 0
) -> Iterator[list[tuple[Frame, memoryview]]]:
    """Cut tensors into frames, and gather these to messages whose payloads have at most `most_bytes` together.

    The frames stand in the order of the tensors and of their bytes, and their payloads are views; see `payloads`.
    """
    gathered: list[tuple[Frame, memoryview]] = []
    room = most_bytes
    for tensor in tensors:
        size, offset = len(tensor.payload), 0
        while offset < size or offset == 0:
            count = min(size - offset, room)
            if gathered:
                gathered[-1][0].payload_bytes = len(gathered[-1][1])
            gathered.append((_frame(tensor, offset, sender_nanoseconds), tensor.payload[offset : offset + count]))
            offset, room = offset + count, room - count
            if room == 0 or len(gathered) == MOST_FRAMES:
                yield gathered
                gathered, room = [], most_bytes
            if size == 0:
                break
    if gathered:
        yield gathered


def _frame(tensor: WireTensor, offset: int, sender_nanoseconds: int) -> Frame:
    step, role, block, slot = tensor.key
    if offset:
        return Frame(step=step, role=role, block=block, slot=slot, offset=offset)
    return Frame(
        step=step,
        role=role,
        block=block,
        slot=slot,
        placement_version=tensor.placement_version,
        tensor=tensor.header,
        sender_nanoseconds=sender_nanoseconds,
        batch_samples=tensor.batch_samples,
        rate_drops=tensor.rate_drops,
        label_count=tensor.label_count,
    )


def payloads(frames: Iterable[Frame], payload: memoryview | bytes) -> Iterator[tuple[Frame, memoryview | bytes]]:
    """Each of the frames of a message that has come, one at least, with its part of the payload.

    Raises ProtocolError where the frames have other lengths than the payload.
    """
    *before, last = frames
    begin, view = 0, memoryview(payload) if before else payload
    for frame in before:
        end = begin + frame.payload_bytes
        if end > len(view):
            raise ProtocolError(
                f"{key_of(frame)}: {end} bytes of a payload of {len(view)} are said to be its chunk's end"
            )
        yield frame, view[begin:end]
        begin = end
    if last.payload_bytes:
        raise ProtocolError(
            f"{key_of(last)}: the last chunk of a message has the rest of its payload, and says no number"
        )
    yield last, view[begin:]


@dataclass(slots=True)
class _Partial:
    """A tensor of which some chunks have come."""

    first: Frame
    buffer: memoryview
    received: int = 0


class Assembler:
    """Puts the chunks of a stream together to tensors; chunks of several tensors may be mixed.

    accept: agrees to a tensor from its announcement and its key, or raises ProtocolError or StatusError. allocate: gives
    memory for as many bytes as were announced, after `accept` has agreed.
    """

    def __init__(self, accept: Callable[[Frame, TensorKey], None], allocate: Callable[[int], memoryview]) -> None:
        self._accept = accept
        self._allocate = allocate
        self._under_way: dict[TensorKey, _Partial] = {}

    @property
    def between_tensors(self) -> bool:
        """Tell whether every tensor that has begun is whole."""
        return not self._under_way

    def add(self, frame: Frame, payload: memoryview | bytes) -> WireTensor | None:
        """Take one chunk; return the tensor where this was its last chunk.

        Raises ProtocolError for a chunk out of order or beyond the announced size.
        """
        key = key_of(frame)
        partial = self._under_way.get(key)
        begin = 0 if partial is None else partial.received
        if frame.offset != begin:
            raise ProtocolError(f"{key}: a chunk at byte {frame.offset} came where byte {begin} was expected")
        if partial is None:
            partial = self._announce(key, frame, len(payload))
        else:
            announces = frame.placement_version or frame.sender_nanoseconds or frame.batch_samples
            if frame.HasField("tensor") or announces or frame.rate_drops or frame.label_count:
                raise ProtocolError(f"{key}: a tensor is announced in its first chunk, and nowhere else")
            _check_fit(key, partial.first, begin, len(payload))
        end = begin + len(payload)
        partial.buffer[begin:end] = payload
        partial.received = end
        first = partial.first
        if end < first.tensor.encoded_bytes:
            return None
        del self._under_way[key]
        return WireTensor(
            key,
            first.placement_version,
            first.tensor,
            partial.buffer,
            first.sender_nanoseconds,
            first.batch_samples,
            first.rate_drops,
            first.label_count,
        )

    def _announce(self, key: TensorKey, frame: Frame, payload_bytes: int) -> _Partial:
        """Take memory for a tensor of which this is the first chunk."""
        if not frame.HasField("tensor"):
            raise ProtocolError(f"{key}: a tensor is announced in its first chunk, and nowhere else")
        _check_fit(key, frame, 0, payload_bytes)
        dimensions = max(len(frame.tensor.shape), len(frame.tensor.strides))
        if dimensions > MAX_DIMENSIONS:
            raise ProtocolError(f"{key}: {dimensions} dimensions are announced; a tensor has {MAX_DIMENSIONS} at most")
        if frame.sender_nanoseconds > MOST_CLOCK_NANOSECONDS:
            raise ProtocolError(f"{key}: was sent at {frame.sender_nanoseconds} nanoseconds, which no clock shows")
        if len(self._under_way) >= MOST_TENSORS:
            raise ProtocolError(f"{key} came while {MOST_TENSORS} tensors are under way; more may not be")
        self._accept(frame, key)
        partial = self._under_way[key] = _Partial(frame, self._allocate(frame.tensor.encoded_bytes))
        return partial


def _check_fit(key: TensorKey, first: Frame, begin: int, count: int) -> None:
    """Refuse a chunk that is longer than the rest of the tensor, and an empty one, which would never end."""
    announced = first.tensor.encoded_bytes
    if begin + count > announced or (count == 0 and announced > 0):
        raise ProtocolError(
            f"{key}: a chunk of {count} bytes at byte {begin} does not fit the {announced} bytes announced"
        )


def role_name(role: Role.ValueType) -> str:
    """Name a role for a sentence. The peer may have sent a number that is no role."""
    try:
        return Role.Name(role).removeprefix("ROLE_").lower().replace("_", " ")
    except ValueError:
        return f"tensor of unknown role {role}"
