"""The check of announcements: a peer's next tensor is accepted before memory is taken for it.

The receiver describes the expected tensor. Both sides compare with one set of sentences. Knows nothing of why a tensor
is expected.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shared.codec import codec_by_name
from shared.errors import OutOfTurnError, ProtocolError
from shared.model.spec import TensorSpec
from shared.tensor_wire import ABSENT, check_encoding, most_bytes, torch_dtype
from shared.transport.stream.framing import TensorKey, key_of
from shared.wire.isthmus.v1.tensor_pb2 import Frame


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """The one tensor that the peer may announce next."""

    key: TensorKey
    placement_version: int
    """The version of the placement that it comes under."""
    codec: str
    tensor: TensorSpec | Callable[[TensorSpec], None]
    """Its shape and type, batch first; or a function that refuses forbidden ones, where the peer chooses them."""
    max_bytes: int | None = None
    """The most that any tensor may have, where an operator limits it."""
    may_be_absent: bool = False
    """True if there may be none in a step."""
    may_be_whole: bool = False
    """True if it may come as it is, in place of its difference by the codec."""


def check_announcement(frame: Frame, expected: ExpectedTensor) -> TensorSpec | None:
    """Agree to the tensor that a frame announces, and return its shape and type; the caller counts it as announced.

    Returns None where the frame says that there is no gradient.
    Raises OutOfTurnError for a tensor of another step or placement, ProtocolError for
    one of another kind, shape, type, codec or size, and the error of `expected.tensor`.
    """
    key = key_of(frame)
    if frame.placement_version != expected.placement_version:
        raise OutOfTurnError(
            f"{key} came under placement {frame.placement_version}; "
            f"{expected.key} under placement {expected.placement_version} was expected"
        )
    if key.step != expected.key.step:
        raise OutOfTurnError(f"{key} came where {expected.key} was expected")
    if key != expected.key:
        raise ProtocolError(f"{key} came where {expected.key} was expected")
    if frame.tensor.is_absent:
        if not expected.may_be_absent or frame.tensor != ABSENT:
            raise ProtocolError(f"{key} is said to be absent, which only a gradient without a description may be")
        return None
    tensor = TensorSpec(tuple(frame.tensor.shape), torch_dtype(frame.tensor.dtype))
    if not isinstance(expected.tensor, TensorSpec):
        expected.tensor(tensor)
    elif tensor != expected.tensor:
        wanted = f"{expected.tensor.dtype} {expected.tensor.shape}"
        raise ProtocolError(f"{key} is {tensor.dtype} {tensor.shape}; {wanted} was expected")
    is_whole = expected.may_be_whole and frame.tensor.codec == "raw"
    codec = codec_by_name("raw" if is_whole else expected.codec)
    most = most_bytes(tensor, codec)
    check_encoding(frame, codec, most if expected.max_bytes is None else min(most, expected.max_bytes))
    return tensor
