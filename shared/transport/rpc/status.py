"""Our errors as gRPC statuses, and statuses as our errors."""

from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shared.errors import (
    AccessError,
    BusyError,
    ConfigError,
    DamagedMessageError,
    DeviceError,
    FencedError,
    IsthmusError,
    ModelError,
    NotAllowedError,
    OutOfTurnError,
    PlanError,
    ProtocolError,
    RefusedError,
    SessionLostError,
    StoppedError,
    TooLargeError,
    UnreachableError,
    one_line,
)
from shared.version import PROTOCOL_VERSION

BROKEN_WRITE = "Internal error from Core"
"""gRPC's words, under the status INTERNAL, for a write that met the end of a stream. Where no other status follows
(`call_status.py`), the connection was lost."""


_DETAILS_KEY = "grpc-status-details-bin"
"""Where gRPC carries a google.rpc.Status."""

_MAX_RETRY_SECONDS = 3600.0
"""The longest wait that a trainer can ask an edge for."""


class StatusError(IsthmusError):
    """Raised inside a call that this process serves, to end it with one status and one sentence.

    retry_after_seconds: when the same call may be answered; None where waiting does not help. wanted: the caller has asked
    for it to learn something (`shared.version`), so that nothing is wrong.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        sentence: str,
        retry_after_seconds: float | None = None,
        *,
        wanted: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.wanted = wanted
        self.retry_after_seconds = retry_after_seconds


def status_of(error: IsthmusError) -> grpc.StatusCode:
    """The status that a call which failed with `error` ends with."""
    match error:
        case StatusError():
            return error.code
        case DamagedMessageError():
            return grpc.StatusCode.DATA_LOSS
        case NotAllowedError():
            return grpc.StatusCode.PERMISSION_DENIED
        case TooLargeError():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case DeviceError():  # no refusal that a second try may disprove: it would end the next process of the trainer, too
            return grpc.StatusCode.ABORTED
        case OutOfTurnError():
            return grpc.StatusCode.FAILED_PRECONDITION
        case ConfigError() | ModelError() | PlanError() | ProtocolError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case UnreachableError():
            return grpc.StatusCode.UNAVAILABLE
        case RefusedError():
            return grpc.StatusCode.FAILED_PRECONDITION
        case StoppedError():
            return grpc.StatusCode.ABORTED
        case _:
            return grpc.StatusCode.INTERNAL


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: IsthmusError) -> NoReturn:
    """End a call with the status and sentence of `error`, and with a google.rpc.RetryInfo where it says when to retry."""
    code, sentence = status_of(error), one_line(str(error))
    if not isinstance(error, StatusError) or error.retry_after_seconds is None:
        await context.abort(code, sentence)
    delay = duration_pb2.Duration()
    delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    status = rpc_status.to_status(status_pb2.Status(code=code.value[0], message=sentence, details=[detail]))
    await context.abort(code, sentence, status.trailing_metadata)


def retry_after_seconds(failure: grpc.aio.AioRpcError) -> float | None:
    """What the trainer's google.rpc.RetryInfo says, at most an hour; None where it says nothing that can be read."""
    for key, value in failure.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            info = error_details_pb2.RetryInfo()
            try:
                if any(detail.Unpack(info) for detail in status_pb2.Status.FromString(value).details):
                    seconds: float = info.retry_delay.ToNanoseconds() / 1e9
                    return min(max(seconds, 0.0), _MAX_RETRY_SECONDS)
            except DecodeError:
                return None
    return None


def error_of(failure: grpc.aio.AioRpcError, trainer: str) -> IsthmusError:
    """What a failed call means to the worker that called. trainer: its address, for the sentence."""
    details = one_line(failure.details() or "no reason given")
    match failure.code():
        case grpc.StatusCode.INTERNAL if details == BROKEN_WRITE:
            return UnreachableError(f"the connection to the trainer at {trainer} was lost")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            sentence = f"the trainer at {trainer} cannot be reached: {details}"
            return UnreachableError(sentence, retry_after_seconds(failure) or 0.0)
        case grpc.StatusCode.CANCELLED:  # by the trainer: nobody asks how a call of ours ended that we cancelled
            return UnreachableError(f"the trainer at {trainer} dropped the call, as one that stops may: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(
                f"{trainer} answers, but not as a trainer of protocol version {PROTOCOL_VERSION}: {details}"
            )
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ProtocolError(f"the trainer at {trainer} and this worker do not go together: {details}")
        case grpc.StatusCode.UNAUTHENTICATED:
            return AccessError(f"the trainer at {trainer} does not know this worker: {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if (seconds := retry_after_seconds(failure)) is not None:
            return BusyError(f"the trainer at {trainer} takes no more at present: {details}", seconds)
        case grpc.StatusCode.DATA_LOSS:
            return DamagedMessageError(f"the trainer at {trainer} received damaged data: {details}")
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return ProtocolError(f"the trainer at {trainer} failed: {details}")
        case grpc.StatusCode.ABORTED:
            return FencedError(f"the trainer at {trainer} refused: {details}")
        case grpc.StatusCode.NOT_FOUND:
            return SessionLostError(f"the trainer at {trainer} refused: {details}")
        case _:
            return RefusedError(f"the trainer at {trainer} refused: {details}")
