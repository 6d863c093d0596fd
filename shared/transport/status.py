"""Our errors as gRPC statuses, and statuses as our errors."""

from typing import TypeVar

import grpc

from shared.errors import (
    ConfigError,
    IsthmusError,
    ModelError,
    NotAllowedError,
    ProtocolError,
    RefusedError,
    UnreachableError,
)
from shared.transport.packets import Damaged
from shared.version import PROTOCOL_VERSION

T = TypeVar("T")

_MAX_SENTENCE_BYTES = 2000
"""gRPC drops a status of more than 8 KiB, and each byte beyond ASCII is sent as three."""

_BROKEN_WRITE = "Internal error from Core"
"""gRPC's own words, under the status INTERNAL, for a write that met a connection which was just then lost."""


class Refusal(IsthmusError):
    """Raised inside a call to end it with one status and one sentence."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class DamagedError(ProtocolError):
    """A message whose checksum or encoding is wrong."""


def undamaged(received: T | Damaged) -> T:
    """What arrived, when it can be believed. Raises DamagedError."""
    if isinstance(received, Damaged):
        raise DamagedError(f"damaged message: {received.reason}")
    return received


def one_line(text: str) -> str:
    """`text` as a status can carry it and a terminal may show it, whatever a peer or a user's code has put into it."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return printable.encode()[:_MAX_SENTENCE_BYTES].decode(errors="ignore")


def status_of(error: IsthmusError) -> grpc.StatusCode:
    """The status that a call which failed with `error` ends with."""
    match error:
        case Refusal():
            return error.code
        case DamagedError():
            return grpc.StatusCode.DATA_LOSS
        case NotAllowedError():
            return grpc.StatusCode.PERMISSION_DENIED
        case ConfigError() | ModelError() | ProtocolError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case _:
            return grpc.StatusCode.INTERNAL


def error_of(failure: grpc.aio.AioRpcError, trainer: str) -> IsthmusError:
    """What a failed call means to the person at the edge. trainer: its address, for the sentence."""
    details = one_line(failure.details() or "no reason given")
    match failure.code():
        case grpc.StatusCode.INTERNAL if details == _BROKEN_WRITE:
            return UnreachableError(f"the connection to the trainer at {trainer} was lost")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(f"the trainer at {trainer} cannot be reached: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(
                f"{trainer} answers, but not as a trainer of protocol version {PROTOCOL_VERSION}: {details}"
            )
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ProtocolError(f"the trainer at {trainer} and this agent do not go together: {details}")
        case grpc.StatusCode.DATA_LOSS:
            return ProtocolError(f"the trainer at {trainer} received damaged data: {details}")
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return ProtocolError(f"the trainer at {trainer} failed: {details}")
        case _:
            return RefusedError(f"the trainer at {trainer} refused: {details}")
