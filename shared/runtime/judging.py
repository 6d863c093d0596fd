"""The judge of announcements: what a peer may send next, agreed to before memory is taken for it.

Whoever receives describes the tensor that is due; the judge compares, with one set of sentences for both sides. Knows nothing
of why a tensor is due.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shared.codec import codec_by_name
from shared.errors import OutOfTurnError, ProtocolError
from shared.model.spec import TensorSpec
from shared.tensor_wire import check_announcement, most_bytes, torch_dtype
from shared.transport.stream.framing import TensorKey, key_of
from shared.wire.isthmus.v1.tensor_pb2 import Frame


@dataclass(frozen=True, slots=True)
class Due:
    """The one tensor that the peer may announce next."""

    key: TensorKey
    deployment_version: int
    """The version of the deployment that it comes under."""
    codec: str
    tensor: TensorSpec | Callable[[TensorSpec], None]
    """Its shape and type, batch first; or, where the peer chooses them, what refuses those that are not permitted."""
    max_bytes: int | None = None
    """The most that any tensor may have, where an operator limits it."""


def judge(frame: Frame, due: Due | None) -> TensorSpec:
    """Agree to the tensor that a frame announces, and return its shape and type; the caller counts it as announced.

    due: None where nothing may come. Raises OutOfTurnError for a tensor of another step or deployment, ProtocolError for one
    of another kind, shape, type, codec or size, and whatever `due.tensor` refuses with.
    """
    key = key_of(frame)
    if due is None:
        raise OutOfTurnError(f"{key} came where nothing was due")
    if frame.deployment_version != due.deployment_version:
        raise OutOfTurnError(
            f"{key} came under deployment {frame.deployment_version}; "
            f"{due.key} under deployment {due.deployment_version} was due"
        )
    if (key.step, key.batch) != (due.key.step, due.key.batch):
        raise OutOfTurnError(f"{key} came where {due.key} was due")
    if key != due.key:
        raise ProtocolError(f"{key} came where {due.key} was due")
    tensor = TensorSpec(tuple(frame.tensor.shape), torch_dtype(frame.tensor.dtype))
    if not isinstance(due.tensor, TensorSpec):
        due.tensor(tensor)
    elif tensor != due.tensor:
        raise ProtocolError(f"{key} is {tensor.dtype} {tensor.shape}; {due.tensor.dtype} {due.tensor.shape} was due")
    codec = codec_by_name(due.codec)
    most = most_bytes(tensor, codec)
    check_announcement(frame, codec, most if due.max_bytes is None else min(most, due.max_bytes))
    return tensor
