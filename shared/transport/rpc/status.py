"""Our errors as gRPC statuses, and statuses as our errors."""

import re
from enum import StrEnum
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shared.bounds import is_term
from shared.errors import (
    AccessError,
    BusyError,
    ClosedError,
    ConfigError,
    DamagedMessageError,
    DeviceError,
    FailedError,
    FencedError,
    IsthmusError,
    ModelError,
    NotAllowedError,
    NotStoredError,
    OutdatedTermError,
    OutOfTurnError,
    PlanError,
    ProtocolError,
    RefusedError,
    SessionLostError,
    StoppedError,
    TicketError,
    TooLargeError,
    UnreachableError,
    VersionError,
    one_line,
)
from shared.version import PROTOCOL_VERSION, spoken_version


class Kind(StrEnum):
    """Kinds of errors that their status does not tell, as the reason of a google.rpc.ErrorInfo."""

    LOST = "SESSION_LOST"
    NOT_STORED = "NOT_STORED"
    ACCESS = "ACCESS"
    FAILED = "FAILED"
    TICKET = "NO_SUCH_TICKET"
    MODEL = "MODEL"
    OUTDATED_TERM = "OUTDATED_TERM"


_ERRORS: dict[str, type[IsthmusError]] = {
    Kind.LOST: SessionLostError,
    Kind.NOT_STORED: NotStoredError,
    Kind.ACCESS: AccessError,
    Kind.FAILED: FailedError,
    Kind.TICKET: TicketError,
    Kind.MODEL: ModelError,
    Kind.OUTDATED_TERM: OutdatedTermError,
}
BROKEN_WRITE = "Internal error from Core"
"""gRPC's words, under the status INTERNAL, for a write that met the end of a stream. Where no other status follows
(`call_status.py`), the connection was lost."""


_DOMAIN = "isthmus"
_TERM, _DIGITS = "term", re.compile(r"\d{1,18}", re.ASCII)
"""Key of the term in an ErrorInfo's metadata, and the form of its value."""
_DETAILS_KEY = "grpc-status-details-bin"
"""Metadata key under which gRPC carries a google.rpc.Status."""

_MAX_RETRY_SECONDS = 3600.0
"""The longest wait that a trainer can ask an edge for."""


class StatusError(IsthmusError):
    """An error that ends a call that this process serves, with one status and one sentence.

    retry_after_seconds: time until the same call may be answered; None if waiting does not help. wanted: True if the
    caller asks for this error to learn something (`shared.version`). kind: the detail that the code alone lacks. term: the
    last one of the session, with `Kind.OUTDATED_TERM`.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        sentence: str,
        retry_after_seconds: float | None = None,
        *,
        wanted: bool = False,
        kind: Kind | None = None,
        term: int | None = None,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.wanted = wanted
        self.kind = kind
        self.term = term
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
    """End a call with the status and sentence of `error`.

    A google.rpc.RetryInfo says when to try again, a google.rpc.ErrorInfo which kind of error it is, where there is one.
    """
    code, sentence = status_of(error), one_line(str(error))
    details = _details(error) if isinstance(error, StatusError) else []
    if not details:
        await context.abort(code, sentence)
    status = rpc_status.to_status(status_pb2.Status(code=code.value[0], message=sentence, details=details))
    await context.abort(code, sentence, status.trailing_metadata)


def _details(error: StatusError) -> list[any_pb2.Any]:
    messages: list[Message] = []
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
        messages.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.kind is not None:
        metadata = {} if error.term is None else {_TERM: str(error.term)}
        messages.append(error_details_pb2.ErrorInfo(reason=error.kind, domain=_DOMAIN, metadata=metadata))
    details = [any_pb2.Any() for _ in messages]
    for detail, message in zip(details, messages, strict=True):
        detail.Pack(message)
    return details


def passed_on(failure: IsthmusError, sentence: str) -> StatusError:
    """Return the status that ends a call because another worker has failed. The caller raises the same kind as `failure`."""
    code, kind, seconds = grpc.StatusCode.INVALID_ARGUMENT, None, None
    match failure:
        case FencedError():
            code = grpc.StatusCode.ABORTED
        case ClosedError():
            code = grpc.StatusCode.NOT_FOUND
        case NotStoredError():
            code, kind = grpc.StatusCode.NOT_FOUND, Kind.NOT_STORED
        case SessionLostError() | TicketError():
            code, kind = grpc.StatusCode.FAILED_PRECONDITION, Kind.LOST
        case AccessError():
            code, kind = grpc.StatusCode.PERMISSION_DENIED, Kind.ACCESS
        case FailedError():
            code, kind = grpc.StatusCode.FAILED_PRECONDITION, Kind.FAILED
        case ProtocolError():
            code = grpc.StatusCode.FAILED_PRECONDITION
        case UnreachableError():
            code, seconds = grpc.StatusCode.UNAVAILABLE, failure.retry_after_seconds
        case BusyError():
            code, seconds = grpc.StatusCode.RESOURCE_EXHAUSTED, failure.retry_after_seconds
    return StatusError(code, sentence, seconds, kind=kind)


def retry_after_seconds(failure: grpc.aio.AioRpcError) -> float | None:
    """Read the delay in the trainer's google.rpc.RetryInfo, at most an hour; None where it cannot be read."""
    info = error_details_pb2.RetryInfo()
    if not _unpack(failure, info):
        return None
    seconds: float = info.retry_delay.ToNanoseconds() / 1e9
    return min(max(seconds, 0.0), _MAX_RETRY_SECONDS)


def _told(failure: grpc.aio.AioRpcError, sentence: str) -> IsthmusError | None:
    """Build the error whose kind the trainer's google.rpc.ErrorInfo names; None where the kind is unknown."""
    info = error_details_pb2.ErrorInfo()
    if not _unpack(failure, info) or info.domain != _DOMAIN or (kind := _ERRORS.get(info.reason)) is None:
        return None
    if issubclass(kind, OutdatedTermError):
        term = info.metadata.get(_TERM, "")
        is_credible = _DIGITS.fullmatch(term) is not None and is_term(int(term))
        return kind(sentence, int(term)) if is_credible else FencedError(sentence)
    return kind(sentence)


def _unpack(failure: grpc.aio.AioRpcError, info: Message) -> bool:
    """Fill `info` from the details of a status; whether they have one that can be read."""
    for key, value in failure.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return any(detail.Unpack(info) for detail in status_pb2.Status.FromString(value).details)
            except DecodeError:
                return False
    return False


def error_of(failure: grpc.aio.AioRpcError, trainer: str) -> IsthmusError:
    """Convert a failed call to the error that the calling worker raises. trainer: its address, for the sentence."""
    details = one_line(failure.details() or "no reason given")
    if (told := _told(failure, f"the trainer at {trainer} refused: {details}")) is not None:
        return told
    match failure.code():
        case grpc.StatusCode.INTERNAL if details == BROKEN_WRITE:
            return UnreachableError(f"the connection to the trainer at {trainer} was lost")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            sentence = f"the trainer at {trainer} cannot be reached: {details}"
            return UnreachableError(sentence, retry_after_seconds(failure) or 0.0)
        case grpc.StatusCode.CANCELLED:  # by the trainer: calls that we cancelled are not asked for their end
            return UnreachableError(f"the trainer at {trainer} dropped the call, as one that stops may: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(
                f"{trainer} answers, but not as a trainer of protocol version {PROTOCOL_VERSION}: {details}"
            )
        case grpc.StatusCode.FAILED_PRECONDITION:
            sentence, theirs = (
                f"the trainer at {trainer} and this worker do not go together: {details}",
                spoken_version(details),
            )
            return ProtocolError(sentence) if theirs is None else VersionError(sentence, theirs)
        case grpc.StatusCode.UNAUTHENTICATED:
            return AccessError(f"the trainer at {trainer} does not know this worker: {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if (seconds := retry_after_seconds(failure)) is not None:
            return BusyError(f"the trainer at {trainer} takes no more at present: {details}", seconds)
        case grpc.StatusCode.DATA_LOSS:
            return DamagedMessageError(f"the trainer at {trainer} received damaged data: {details}")
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return FailedError(f"the trainer at {trainer} failed: {details}")
        case grpc.StatusCode.ABORTED:
            return FencedError(f"the trainer at {trainer} refused: {details}")
        case grpc.StatusCode.NOT_FOUND:
            return SessionLostError(f"the trainer at {trainer} refused: {details}")
        case _:
            return RefusedError(f"the trainer at {trainer} refused: {details}")
