"""The gate that every call of a server passes before its first message is read: who it is, whether he may, how often.

One table says which scope a method needs; what is not in it is let in for nobody. Knows nothing of what the methods do.
"""

import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from shared.errors import IsthmusError
from shared.transport.callers import ANYONE, Authenticator, Caller, Context, set_caller
from shared.transport.rate import RateLimit
from shared.transport.status import Refusal, abort
from shared.transport.tokens import Scope

_BUSY_RETRY_SECONDS = 1.0
"""When a caller with too many calls under way may try again; one of them has ended by then, or he has himself to blame."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
"""Of a method; None where the server has no such method."""
Refused = Callable[[str, str, IsthmusError], None]


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls in, or ends them with a status.

    scopes: the full name of every method ("/package.Service/Method") to the scope it needs; None needs not even a token.
    calls_per_second, calls_at_once: limits of one subject, or of one host where nobody is asked who he is.
    on_refusal: told the method, the peer and the error.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        scopes: Mapping[str, Scope | None],
        calls_per_second: float,
        calls_at_once: int,
        on_refusal: Refused,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator = authenticator
        self._scopes = scopes
        self._rate = RateLimit(calls_per_second, clock)
        self._calls_at_once = calls_at_once
        self._under_way: Counter[str] = Counter()
        self._on_refusal = on_refusal

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The handler behind the gate; None, which gRPC answers with UNIMPLEMENTED, where there is none."""
        handler = await continuation(handler_call_details)
        return handler and self._guarded(str(handler_call_details.method), handler)

    def _guarded(self, method: str, handler: Any) -> Handler:
        """Whatever `handler` is, a handler of streams: only those are called before the first message has come."""

        async def call(requests: Any, context: Context) -> None:
            try:
                with self._admitted(method, context):
                    request = requests if handler.request_streaming else await _only(context)
                    await _answer(_behaviour(handler)(request, context), context)
            except Refusal as refusal:
                self._on_refusal(method, _host(context), refusal)
                await abort(context, refusal)

        return grpc.stream_stream_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)

    @contextmanager
    def _admitted(self, method: str, context: Context) -> Iterator[None]:
        """Raises Refusal unless the call may go on; it counts as under way until it ends."""
        who = self._identify(method, context)
        key = f"subject {who.subject}" if who.subject else _host(context)
        if wait_seconds := self._rate.take(key):
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"too many calls in too short a time (server.max_calls_per_second); try again in {wait_seconds:.2g} s",
                wait_seconds,
            )
        if self._under_way[key] >= self._calls_at_once:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._calls_at_once} calls of this caller are under way already (server.max_calls_at_once)",
                _BUSY_RETRY_SECONDS,
            )
        self._under_way[key] += 1
        set_caller(who)
        try:
            yield
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    def _identify(self, method: str, context: Context) -> Caller:
        needed = self._scopes.get(method, "none")
        if needed is None:
            return ANYONE
        who = self._authenticator.identify(context)
        if needed not in who.scopes:
            name = method.rpartition("/")[2]
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, f"{name} needs a token with the scope {needed}")
        return who


async def _only(context: Context) -> Any:
    """The one message of a call whose requests are no stream."""
    request = await context.read()
    if request is grpc.aio.EOF:
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the call brought no message")
    return request


async def _answer(answering: Any, context: Context) -> None:
    """Send what a handler gives: one message, many, or what it has written by itself."""
    if inspect.isasyncgen(answering):
        async for response in answering:
            await context.write(response)
    elif (response := await answering) is not None:
        await context.write(response)


def _behaviour(handler: Any) -> Callable[[Any, Context], Any]:
    kinds: list[Callable[[Any, Context], Any] | None] = [
        handler.unary_unary,
        handler.unary_stream,
        handler.stream_unary,
        handler.stream_stream,
    ]
    return next(kind for kind in kinds if kind is not None)


def _host(context: Context) -> str:
    """The peer without its port: "ipv4:203.0.113.7"."""
    return str(context.peer()).rpartition(":")[0]
