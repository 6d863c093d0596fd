"""Calls of the commands to a control service: a check for a listener, one call, and its refusal as an error of ours."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from shared.errors import IsthmusError, ProtocolError, RefusedError, UnreachableError, one_line
from shared.transport.rpc.contract import Stub

CONNECT_SECONDS = 5.0
_OPTIONS = [("grpc.enable_http_proxy", 0)]  # the called process is on this machine


class ControlService:
    """The control service of a process that runs."""

    def __init__(self, service: ServiceDescriptor, channel: grpc.Channel) -> None:
        self._service = service
        self._stub = Stub(service, channel)

    def call(self, method: str, timeout_seconds: float | None = None, **fields: Any) -> Any:
        """Call a method by its name in the contract, and return the answer, or an iterator of answers where it streams.

        fields: of the request. timeout_seconds: longest wait for the answer; None for a call that takes as long as it takes.
        """
        request = GetMessageClass(self._service.methods_by_name[method].input_type)(**fields)
        return getattr(self._stub, method)(request, timeout=timeout_seconds)


@contextmanager
def calling(target: str, who: str, service: ServiceDescriptor) -> Iterator[ControlService]:
    """A service at `target` (unix:/path or host:port); what its calls fail with becomes an error of ours.

    who: "agent" or "trainer", for the sentence. Raises UnreachableError when no process listens, RefusedError for a refusal.
    """
    _knock(target, who)
    with grpc.insecure_channel(target, options=_OPTIONS) as channel:
        try:
            yield ControlService(service, channel)
        except grpc.RpcError as failure:
            raise _error_of(failure, target, who) from failure


def _knock(target: str, who: str) -> None:
    """Find out, with the system's own words, whether a process listens."""
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
                door.settimeout(CONNECT_SECONDS)
                door.connect(target.removeprefix("unix:"))
        else:
            host, _, port = target.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as cause:
        raise UnreachableError(
            f"no {who} is controlled at {target} (--control, control.listen): {cause.strerror or cause}"
        ) from cause


def _has_ended(target: str, who: str) -> bool:
    try:
        _knock(target, who)
    except UnreachableError:
        return True
    return False


def _error_of(failure: grpc.RpcError, target: str, who: str) -> IsthmusError:
    code, details = failure.code(), one_line(failure.details() or "no reason given")
    # Not by us: gRPC ends the calls of a server that stops, in one of two ways.
    if code is grpc.StatusCode.CANCELLED or (code is grpc.StatusCode.UNAVAILABLE and _has_ended(target, who)):
        return RefusedError(f"the {who} at {target} ended before it answered")
    match code:
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(details)
        case grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(f"what listens at {target} is not the {who} of this version: {details}")
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return ProtocolError(f"the {who} at {target} failed: {details}")
        case _:
            return RefusedError(details)
