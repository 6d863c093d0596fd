"""Calls of a control service as they come over HTTP: the handlers are those of gRPC, behind the same gate.

The form is that of the Connect protocol: `POST /package.Service/Method`, requests and answers in protobuf's JSON.
"""

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from shared.errors import one_line
from shared.transport.auth.gate import Gate
from shared.transport.rpc.contract import path_of
from shared.transport.rpc.status import StatusError
from shared.web.requests import Request, Response

_DEEPEST = 16
"""Levels of a request's JSON; no request of ours has more than three."""
_STATUSES = {
    grpc.StatusCode.CANCELLED: HTTPStatus.INTERNAL_SERVER_ERROR,
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The Connect protocol's; all others are of a defect."""


class _EndedError(Exception):
    """A call that a handler has ended with a status."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class _Details(NamedTuple):
    """The part of `grpc.HandlerCallDetails` for which handlers and the gate ask."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


class _HttpCall:
    """The context of one call, as far as handlers and the gate use that of gRPC's."""

    def __init__(self, request: Request, peer: str, message: Callable[[], Message]) -> None:
        """message: makes the request's message, once the caller is known; raises StatusError."""
        self._request = request
        self._peer = peer
        self._message = message
        self.answer: Message | None = None

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        shown = self._request.headers.get("authorization")
        return () if shown is None else (("authorization", shown),)

    async def send_initial_metadata(self, _metadata: object) -> None:
        """Send nothing: an answer has one head."""

    async def read(self) -> Message:
        return self._message()

    async def write(self, answer: Message) -> None:
        self.answer = answer

    async def abort(self, code: grpc.StatusCode, details: str = "", _trailing_metadata: object = ()) -> NoReturn:
        raise _EndedError(code, details)


class Calls:
    """The calls of one service that have one request and one answer."""

    def __init__(self, service: ServiceDescriptor, handlers: grpc.GenericRpcHandler, gate: Gate) -> None:
        """handlers: of the whole service, as its gRPC server has them."""
        self._methods = {path_of(method): method for method in service.methods if not method.server_streaming}
        self._handlers = handlers
        self._gate = gate

    async def answer(self, request: Request, peer: str) -> Response:
        """Answer a call. peer: the caller's address in gRPC's form, "ipv4:203.0.113.7:5000"."""
        if (method := self._methods.get(request.path)) is None:
            return refused(grpc.StatusCode.UNIMPLEMENTED, f"no such call: {one_line(request.path)[:200]}")
        call: Any = _HttpCall(request, peer, lambda: _message(method, request.body))
        details: Any = _Details(request.path, call.invocation_metadata())
        handler: Any = await self._gate.intercept_service(self._handler, details)
        try:
            await handler.stream_stream(None, call)
        except _EndedError as ended:
            return refused(ended.code, str(ended))
        # An indented text would be made without the encoder that is written in C, in twice the calls.
        body = json_format.MessageToJson(call.answer, indent=None).encode()
        return Response(HTTPStatus.OK, body, "application/json")

    async def _handler(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.service(details)


def refused(code: grpc.StatusCode, sentence: str) -> Response:
    """Return the answer to a call that a status has ended, with the code and the sentence as JSON."""
    headers = {"WWW-Authenticate": "Bearer"} if code is grpc.StatusCode.UNAUTHENTICATED else {}
    body = json.dumps({"code": code.name.lower(), "message": sentence}).encode()
    status = _STATUSES.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return Response(status, body, "application/json", headers)


def _message(method: MethodDescriptor, body: bytes) -> Message:
    try:
        return json_format.Parse(body.decode(), GetMessageClass(method.input_type)(), max_recursion_depth=_DEEPEST)
    except (json_format.Error, ValueError, TypeError, RecursionError) as cause:
        sentence = f"the request is no {method.input_type.name} in JSON: {one_line(str(cause))[:200]}"
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, sentence) from cause
