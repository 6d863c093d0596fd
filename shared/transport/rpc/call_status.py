"""The status with which the peer has ended a call of ours.

A write that meets the end of a stream gives the call a status that gRPC makes up, before the peer's status or in its place.
The sentence of a refusal would be lost, and the refusal would look like a lost connection.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

from shared.transport.rpc.status import BROKEN_WRITE

T = TypeVar("T")
_POLLS, _POLL_SECONDS = 200, 0.005


class CallStatus:
    """Watches a call from its beginning."""

    def __init__(self, call: Any) -> None:
        """call: a gRPC call with a stream of requests."""
        self._call = call
        self._first: tuple[grpc.StatusCode, str] | None = None
        self._trailing: Any = ()
        """The metadata that came with it."""
        call.add_done_callback(self._note)

    async def failure(self) -> grpc.aio.AioRpcError | None:
        """Wait for the end of the call; returns its failure, and None where it has ended well.

        Where a write has failed first, the peer's status follows once another task has read all that came before it. A lost
        connection has a status, too.
        """
        code, details = await self._call.code(), await self._call.details()
        for _ in range(_POLLS):
            if details != BROKEN_WRITE:
                break
            if self._first is not None and self._first[1] != BROKEN_WRITE:
                code, details = self._first
                break
            await asyncio.sleep(_POLL_SECONDS)
            code, details = await self._call.code(), await self._call.details()
        if code is grpc.StatusCode.OK:
            return None
        trailing = await self._call.trailing_metadata() or self._trailing
        return grpc.aio.AioRpcError(code, await self._call.initial_metadata(), trailing, details=details)

    def _note(self, call: Any) -> None:
        self._first = _at_once(call.code()), _at_once(call.details())
        self._trailing = _at_once(call.trailing_metadata())


def _at_once(answer: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing. After a wait the status would be another one."""
    try:
        answer.send(None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return]
    raise AssertionError("the call is said to be done and has no status")
