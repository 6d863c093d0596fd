"""The gate that every call of a server passes before its first message is read: the caller's identity, rights and rate.

One table says which scope a method needs; a method that is not in it is closed. The calls of an admitted caller end
when its token is withdrawn. Knows nothing of the methods' work.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from shared.concurrency.tasks import repeat
from shared.events import Emit, ignore
from shared.events.calls import CallMade, CallRefused
from shared.transport.auth.callers import Authenticator, Caller, Context, set_caller
from shared.transport.auth.places import Places
from shared.transport.auth.rate import RateLimit
from shared.transport.auth.scopes import Scope
from shared.transport.rpc.contract import path_of
from shared.transport.rpc.status import StatusError, abort
from shared.wire.isthmus.v1 import options_pb2

PROBE_SECONDS = 5.0
"""Longest time from the beginning of a probe to its answer."""
MOST_PROBES = 256
"""Probes at one time. Each holds a few kilobytes."""
_BUSY_RETRY_SECONDS = 1.0
"""Delay before a caller with too many calls under way may try again. By then one of them has usually ended."""
_CLOSED_RETRY_SECONDS = 5.0
"""Delay before a caller may try again while the operator has to repair a file."""
LOOK_SECONDS = 0.25
"""Interval between two judgements of calls under way. A call ends when two judgements in a row find it withdrawn,
because a file that is being written may lack a token for a moment. So a subject that is removed is out within half a second."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
"""The handler of a method; None where the server has no such method."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A call under way. limit: ends it when it is set to a time."""

    who: Caller
    scope: Scope
    limit: asyncio.Timeout


def scopes_of(*services: ServiceDescriptor) -> dict[str, Scope]:
    """Return the scope that the contract says for each method, by its path. A method without one ends the start."""
    return {
        path_of(method): Scope[
            options_pb2.Scope.Name(method.GetOptions().Extensions[options_pb2.scope])[len("SCOPE_") :]
        ]
        for service in services
        for method in service.methods
    }


@dataclass(frozen=True, slots=True)
class GateLimits:
    """Limits on the calls of one caller: a subject, or a host on a port without authentication. The wrong credentials
    of a host have the same limits."""

    calls_per_second: float
    calls_at_once: int
    """Largest number of calls under way of one subject or host."""


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls in, or ends them with a status.

    scopes: the full name of every method ("/package.Service/Method") to the scope it needs; None needs not even a token,
    and is a probe: no limit of a caller keeps it out.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        scopes: Mapping[str, Scope | None],
        limits: GateLimits,
        emit: Emit = ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator = authenticator
        self._scopes = scopes
        self._rate = RateLimit(limits.calls_per_second, clock)
        self._strangers = RateLimit(limits.calls_per_second, clock)
        self._calls_at_once = limits.calls_at_once
        self._under_way: dict[str, set[_Call]] = {}
        self._withdrawn: set[_Call] = set()
        """The calls that the last look has found to be withdrawn."""
        self._probes = Places(MOST_PROBES, PROBE_SECONDS)
        self._emit = emit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The handler behind the gate; None, which gRPC answers with UNIMPLEMENTED, where there is none."""
        handler = await continuation(handler_call_details)
        return handler and self._guarded(str(handler_call_details.method), handler)

    @property
    def open(self) -> bool:
        """Tell whether a caller without a call under way can be admitted."""
        return self._authenticator.failure is None

    async def keep_watch(self, report: Callable[[], Awaitable[None]]) -> None:
        """End calls whose caller may no longer make them, for as long as this is awaited. report: called after each look."""

        async def look() -> None:
            self._turn_out()
            await report()

        await repeat("the watch over withdrawn tokens", look, LOOK_SECONDS)

    def _turn_out(self) -> None:
        calls = [call for calls in self._under_way.values() for call in calls]
        allowed = self._authenticator.judge()
        withdrawn = {call for call in calls if not allowed(call.who, call.scope)}
        now = asyncio.get_running_loop().time()
        for call in withdrawn & self._withdrawn:
            if not call.limit.expired():
                call.limit.reschedule(now)
        self._withdrawn = withdrawn

    def _guarded(self, method: str, handler: Any) -> Handler:
        """The gate in front of a handler, as a handler of streams: gRPC calls only those before the first message has come."""

        async def call(requests: Any, context: Context) -> None:
            self._emit(CallMade(context.peer()))
            try:
                async with self._admitted(method, context):
                    if handler.response_streaming:
                        # gRPC forgets that these are sent when the write that carries them is cancelled, and then cannot
                        # end the call.
                        await context.send_initial_metadata(())
                    request = requests if handler.request_streaming else await _only(context)
                    await _answer(_behaviour(handler)(request, context), context)
            except StatusError as refusal:
                self._emit(CallRefused(method, _host(context), refusal))
                await abort(context, refusal)

        return grpc.stream_stream_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)

    def _admitted(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Let the call in for as long as the block runs. Raises StatusError unless it may go on."""
        needed = self._scopes.get(method, "none")
        return self._probes.place() if needed is None else self._let_in(method, needed, context)

    @asynccontextmanager
    async def _let_in(self, method: str, needed: str, context: Context) -> AsyncIterator[None]:
        host = _host(context)
        who = self._identify(method, host, context)
        key = _key(who, host)
        self._refuse_hurry(self._rate.take(key))
        if needed not in who.scopes:
            name = method.rpartition("/")[2]
            raise StatusError(grpc.StatusCode.PERMISSION_DENIED, f"{name} needs a token with the scope {needed}")
        calls = self._under_way.get(key, set())
        if len(calls) >= self._calls_at_once:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._calls_at_once} calls of this caller are under way already (max_calls_at_once)",
                _BUSY_RETRY_SECONDS,
            )
        call = _Call(who, Scope(needed), asyncio.timeout(None))
        set_caller(who, unquote(host.partition(":")[2]).strip("[]"))
        try:
            async with call.limit:
                self._under_way[key] = calls
                calls.add(call)
                yield
        except TimeoutError:
            if not call.limit.expired():
                raise
            raise StatusError(
                grpc.StatusCode.UNAUTHENTICATED, f"the operator has withdrawn the tokens of {who.subject!r}"
            ) from None
        finally:
            calls.discard(call)
            if not calls:
                self._under_way.pop(key, None)

    def _identify(self, method: str, host: str, context: Context) -> Caller:
        """Find the caller. Raises StatusError, also for callers without a call under way while the tokens cannot be read."""
        self._refuse_hurry(self._strangers.wait_seconds(host))
        failure = self._authenticator.failure
        try:
            who = self._authenticator.identify(method, context)
        except StatusError:
            self._strangers.take(host)
            if failure is not None:
                raise _closed() from None
            raise
        if failure is not None and _key(who, host) not in self._under_way:
            raise _closed()
        return who

    def _refuse_hurry(self, wait_seconds: float) -> None:
        if wait_seconds:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"too many calls in too short a time (max_calls_per_second); try again in {wait_seconds:.2g} s",
                wait_seconds,
            )


def _key(who: Caller, host: str) -> str:
    return f"subject {who.subject}" if who.subject else host


def _closed() -> StatusError:
    return StatusError(
        grpc.StatusCode.UNAVAILABLE,
        "the file of tokens cannot be read, so nobody new is admitted until the operator repairs it",
        _CLOSED_RETRY_SECONDS,
    )


async def _only(context: Context) -> Any:
    """The one message of a call whose requests are no stream."""
    request = await context.read()
    if request is grpc.aio.EOF:
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "the call brought no message")
    return request


async def _answer(answering: Any, context: Context) -> None:
    """Send a handler's answer: one message, many, or messages that it has written by itself."""
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
