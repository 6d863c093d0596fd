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
from shared.transport.stream.framing import role_name
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role


@dataclass(frozen=True, slots=True)
class Due:
    """The one tensor that the peer may announce next."""

    step: int
    role: Role.ValueType
    deployment: int
    """The number of the deployment that it comes under."""
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
    what = f"the {role_name(frame.role)} of step {frame.step}"
    if due is None:
        raise OutOfTurnError(f"{what} came where nothing was due")
    wanted = f"the {role_name(due.role)} of step {due.step}"
    if frame.deployment_epoch != due.deployment:
        raise OutOfTurnError(
            f"{what} came under deployment {frame.deployment_epoch}; {wanted} under deployment {due.deployment} was due"
        )
    if frame.step != due.step:
        raise OutOfTurnError(f"{what} came where {wanted} was due")
    if frame.role != due.role:
        raise ProtocolError(f"{what} came where {wanted} was due")
    tensor = TensorSpec(tuple(frame.tensor.shape), torch_dtype(frame.tensor.dtype))
    if not isinstance(due.tensor, TensorSpec):
        due.tensor(tensor)
    elif tensor != due.tensor:
        raise ProtocolError(f"{what} is {tensor.dtype} {tensor.shape}; {due.tensor.dtype} {due.tensor.shape} was due")
    codec = codec_by_name(due.codec)
    most = most_bytes(tensor, codec)
    check_announcement(frame, codec, most if due.max_bytes is None else min(most, due.max_bytes))
    return tensor
