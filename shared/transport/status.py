"""Our errors as gRPC statuses, and statuses as our errors."""

import grpc

from shared.errors import ConfigError, IsthmusError, ModelError, ProtocolError, RefusedError, UnreachableError


class Refusal(IsthmusError):
    """Raised inside a call to end it with one status and one sentence."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class DamagedError(ProtocolError):
    """A message whose checksum or encoding is wrong."""


def status_of(error: IsthmusError) -> grpc.StatusCode:
    """The status that a call which failed with `error` ends with."""
    match error:
        case Refusal():
            return error.code
        case DamagedError():
            return grpc.StatusCode.DATA_LOSS
        case ConfigError() | ModelError() | ProtocolError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case _:
            return grpc.StatusCode.INTERNAL


def error_of(failure: grpc.aio.AioRpcError, trainer: str) -> IsthmusError:
    """What a failed call means to the person at the edge. trainer: its address, for the sentence."""
    details = failure.details() or "no reason given"
    match failure.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(f"the trainer at {trainer} cannot be reached: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(f"{trainer} answers, but not as a trainer of protocol version 1: {details}")
        case grpc.StatusCode.DATA_LOSS:
            return ProtocolError(f"the trainer at {trainer} received damaged data: {details}")
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return ProtocolError(f"the trainer at {trainer} failed: {details}")
        case _:
            return RefusedError(f"the trainer at {trainer} refused: {details}")
