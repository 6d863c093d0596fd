"""The connections to one trainer: made, replaced where they have gone wrong, and their failures turned into our errors."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from shared.client.config import TrainerAddressConfig
from shared.client.credentials import TrainerAccess
from shared.client.idle_timeout import IdleTimeout, idle_timeout
from shared.client.methods import HEALTH, method_path
from shared.client.proxy import through_proxy
from shared.concurrency.tasks import is_cancelled, run_unless_failed
from shared.config import MAX_CHUNK_BYTES, LinkConfig
from shared.errors import (
    AccessError,
    BusyError,
    IsthmusError,
    ProtocolError,
    UnansweredError,
    UnreachableError,
    one_line,
)
from shared.events import Emit
from shared.events.calls import CallFailed
from shared.transport.rpc.call_status import CallStatus
from shared.transport.rpc.options import MESSAGE_OVERHEAD_BYTES, channel_options
from shared.transport.rpc.status import error_of
from shared.transport.stream.packets import Damaged, message_deserializer, undamaged

_log = structlog.get_logger(__name__)
_OTHER_NAME = "Hostname Verification"
_UNTRUSTED = ("handshake failed", _OTHER_NAME)
"""gRPC's words for a failed TLS handshake, and for another host's certificate."""
_CONNECTION_FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED)
"""Statuses of calls that end because the connection itself has failed, or because the trainer has a defect."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class TrainerConnection:
    """Two connections to one trainer: tensors go over one, everything else over the other."""

    def __init__(
        self,
        trainer: TrainerAddressConfig,
        link: LinkConfig,
        emit: Emit,
        access: TrainerAccess,
    ) -> None:
        self._access = access
        self.address = trainer.address
        self._connect_timeout_seconds = trainer.connect_timeout_seconds
        self.call_timeout_seconds = trainer.call_timeout_seconds
        self.call_timeout_key = f"{access.trainer_section}.call_timeout_seconds" if access.trainer_section else ""
        """The setting that says so; empty where none does."""
        self._emit = emit
        self._options = channel_options(MAX_CHUNK_BYTES + MESSAGE_OVERHEAD_BYTES, link.keepalive_seconds)
        self._retired: list[grpc.aio.Channel] = []
        """Replaced connections: no new call is made on them, but the training stream may still be on one."""
        self._greeting: Any = None
        self._socket: Path | None = None
        """Socket that leads to the trainer; None where it is dialled itself."""
        self._unanswered: dict[str, float] = {}
        """Time at which a call began that was not answered, by its method."""
        self._rerouted: asyncio.Future[None] | None = None
        """Future that ends with an error when the trainer is dialled another way; None while no call waits."""
        self._connect()

    def _connect(self) -> None:
        self._credentials = self._access.credentials()
        self._shown = self.address if self._socket is not None else through_proxy(self.address, self._access.proxy)
        self.control = self._access.channel(self.address, self._options, self._socket)
        self.tensors = self._access.channel(self.address, self._options, self._socket)

    def _replace(self) -> None:
        self._retired += [self.control, self.tensors]
        self._connect()

    def reroute(self, socket: Path | None) -> None:
        """Dial the trainer by a socket that leads to it from now on, or itself. Calls that wait for it are to be repeated."""
        self._socket = socket
        self._replace()
        rerouted, self._rerouted = self._rerouted, None
        if rerouted is not None:
            rerouted.set_exception(UnreachableError(f"the trainer at {self.address} is dialled another way"))
            rerouted.exception()  # perhaps no call waits any more

    async def unless_rerouted(self, work: Awaitable[T]) -> T:
        """Await some work of a call, unless the trainer is dialled another way meanwhile. Raises UnreachableError then."""
        if self._rerouted is None:
            self._rerouted = asyncio.get_running_loop().create_future()

        async def do() -> T:
            try:
                return await work
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                raise self.closed_failure() from None

        return await run_unless_failed(do(), self._rerouted)

    def closed_failure(self) -> UnreachableError:
        """Return the error of a call that ends because the connection under it is closed. gRPC cancels it."""
        return UnreachableError(f"the connection to the trainer at {self.address} was closed")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call, with the caller's credentials."""
        return self._access.metadata()

    async def open(self) -> None:
        """Wait until the trainer answers.

        Raises UnreachableError after the connect timeout, and AccessError at once where one side does not trust the other's
        certificate.
        """
        _log.info("connecting", trainer=self._shown)
        try:
            await self.wait_until_connected()
        except BaseException:
            await self.close()
            raise
        # The call does not wait for it. A trainer reports connections without a call, and this one may be for later.
        greet: Any = self.control.unary_unary(HEALTH)
        self._greeting = greet(b"")

    async def wait_until_connected(self) -> None:
        """Wait until the trainer answers; raises as `open` does, and can be repeated."""
        why = ""
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                while (state := self.control.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        why = f": {await self._explain_failure()}"
                        if any(words in why for words in _UNTRUSTED):
                            distrust = _distrust(why, self._access)
                            raise AccessError(f"no secure connection to the trainer at {self._shown}: {distrust}")
                    await self.control.wait_for_state_change(state)
        except TimeoutError as cause:
            section = self._access.trainer_section
            keys = f" ({section}.address, {section}.connect_timeout_seconds)" if section else ""
            raise UnreachableError(
                f"no trainer answered at {self._shown} within {self._connect_timeout_seconds:g} s{keys}{why}"
            ) from cause

    async def _explain_failure(self) -> str:
        """Find out why the last attempt to connect failed. gRPC tells that to a call only."""
        try:
            check: Any = self.control.unary_unary(HEALTH)
            await check(b"", wait_for_ready=False)
        except grpc.aio.AioRpcError as failure:
            why = one_line((failure.details() or "").rpartition("last error: ")[2])
            if why.endswith("Socket closed"):
                keys = f"[{self._access.tls_section}]"
                why = f"it ends the connection, as one does that wants TLS or a certificate which it trusts ({keys})"
                return why + _doctor(self._access)
            return why
        return "a moment later it did"

    async def close(self) -> None:
        """Close all connections."""
        await self.close_retired()
        await self.control.close()
        await self.tensors.close()

    async def close_retired(self) -> None:
        """Close the connections that were replaced. Calls that are left on them end with UnreachableError."""
        while self._retired:
            await self._retired.pop().close()

    async def check_serving(self) -> None:
        """Ask the trainer whether it serves. The question tells the trainer nothing and changes nothing.

        Raises as `check_answers`, and UnreachableError if it does not serve.
        """
        if (await self._health()).status == HealthCheckResponse.NOT_SERVING:
            raise UnreachableError(f"the trainer at {self.address} says that it does not serve now")

    async def check_answers(self) -> None:
        """Ask the same, and accept a trainer that does not serve, as one that is about to stop.

        Raises UnreachableError or BusyError, or ProtocolError if the connection has gone wrong. Other errors show in
        the next call.
        """
        await self._health()

    async def _health(self) -> HealthCheckResponse:
        """Return what the trainer says of itself; nothing where the next call shows more."""
        check = self.tensors.unary_unary(
            HEALTH,
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            answer: HealthCheckResponse = await self.unless_rerouted(
                check(HealthCheckRequest(), timeout=self._connect_timeout_seconds)
            )
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:  # it answers, and the next call shows the error
                return HealthCheckResponse()
            error = self.handle_failure(failure)
            if isinstance(error, UnreachableError | BusyError | ProtocolError):
                raise error from failure
            return HealthCheckResponse()
        return answer

    async def call(self, name: str, request: Any, response_type: type[M], repeats: int = 1) -> M:
        """Make one call, a message for a message, over the connection that carries no tensors. repeats: see `idle_timeout`.

        Raises the IsthmusError that the call ended with.
        """
        method = self.control.unary_unary(
            method_path(name),
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_deserializer(response_type),
        )
        async with self.idle_timeout(name, repeats):
            return await self.await_answer(method(request, metadata=self.metadata()))

    async def await_answer(self, answer: Awaitable[T | Damaged]) -> T:
        """Await the answer of a call, or the next one. Raises the IsthmusError that the call ended with."""
        try:
            return undamaged(await self.unless_rerouted(answer))
        except grpc.aio.AioRpcError as failure:
            raise self.handle_failure(failure) from failure

    async def await_end(self, call: Any) -> Any:
        """Await the answer of a call with a stream of requests. Raises the IsthmusError that the call ended with."""
        status = CallStatus(call)
        try:
            return undamaged(await self.unless_rerouted(call))
        except grpc.aio.AioRpcError as failure:
            raise self.handle_failure(await status.failure() or failure) from failure

    def handle_failure(self, failure: grpc.aio.AioRpcError) -> IsthmusError:
        """Count a failed call, replace connections that must not be used again, and return the failure as an error of ours.

        A lost connection is replaced where the certificates have changed since it was made. After a failure of the connection
        itself (`_CONNECTION_FAILURES`) it is replaced at once: HTTP/2 packs the headers of a call by those of the calls before,
        so once a byte of them was damaged on the way, the trainer understands no later call of that connection.
        """
        self._emit(CallFailed(failure.code()))
        error = error_of(failure, self._shown)
        outdated = isinstance(error, UnreachableError) and self._access.credentials() is not self._credentials
        if outdated or failure.code() in _CONNECTION_FAILURES:
            self._replace()
        return error

    @property
    def unanswered_since(self) -> float | None:
        """Return the time by time.monotonic since when the trainer has left calls unanswered, as one may that answers others.

        None where each method was answered the last time, or the connection was lost since.
        """
        return min(self._unanswered.values(), default=None)

    @asynccontextmanager
    async def idle_timeout(
        self, call: str, repeats: int = 1, most_seconds: float = math.inf
    ) -> AsyncIterator[IdleTimeout]:
        """Limit how long the trainer may make no progress inside the block. Raises UnreachableError out of it.

        repeats: how many times the work is asked for at once; the trainer may take so many times as long. most_seconds: see
        `idle_timeout`.
        """
        seconds, began = self.call_timeout_seconds * repeats, time.monotonic()
        try:
            async with idle_timeout(self.address, call, seconds, self.call_timeout_key, most_seconds) as limit:
                yield limit
        except UnansweredError:
            self._unanswered.setdefault(call, began)
            raise
        except UnreachableError:  # it may come back as another process
            self._unanswered.clear()
            raise
        self._unanswered.pop(call, None)


def _distrust(why: str, access: TrainerAccess) -> str:
    """Say why a handshake failed, of which gRPC tells in the words of its library, and which key to look at."""
    section = access.tls_section
    _, is_judged, said = why.partition("CERTIFICATE_VERIFY_FAILED: ")
    if is_judged:
        trusted = f"{section}.ca is {'left out' if access.ca is None else access.ca}"
        reason = f"its certificate is not trusted: {said.removesuffix(': OK')} ({trusted})"
    elif _OTHER_NAME in why:
        reason = f"its certificate is for another name ({section}.server_name)"
    elif "WRONG_VERSION_NUMBER" in why:
        reason = f"it does not speak TLS, which [{section}] asks for"
    else:
        reason = f"{why.removeprefix(': ')} ([{section}])"
    return reason + _doctor(access)


def _doctor(access: TrainerAccess) -> str:
    """Name the command that looks into it, where a device dials."""
    return "; `edge-agent doctor` says what to repair" if access.trainer_section else ""
