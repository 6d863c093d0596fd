"""Calls that probe a trainer and the link to it: how a call ends is the answer, so a failure is no error.

Each has a deadline, and none is tried again.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from shared.client.credentials import TrainerAccess, ticket_metadata
from shared.config import MAX_CHUNK_BYTES, LinkConfig
from shared.errors import one_line
from shared.transport.rpc.options import MESSAGE_OVERHEAD_BYTES, channel_options

CALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The end of a call: its status, the trainer's words, and the bytes of the message that it brought."""

    code: grpc.StatusCode
    details: str = ""
    data: bytes = b""


class ProbeCalls:
    """Calls over a connection of their own to a trainer."""

    def __init__(
        self,
        address: str,
        access: TrainerAccess,
        link: LinkConfig,
        call_seconds: float = CALL_SECONDS,
        ticket: str | None = None,
    ) -> None:
        """call_seconds: the deadline of each call. ticket: a trainer's credential in the place of an agent's token."""
        self._metadata = access.metadata if ticket is None else lambda: ticket_metadata(ticket)
        self._call_seconds = call_seconds
        options = channel_options(MAX_CHUNK_BYTES + MESSAGE_OVERHEAD_BYTES, link.keepalive_seconds)
        self._channel = access.channel(address, options)
        self.carried_bytes = 0
        """Bytes of the messages so far, both ways."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def ask(self, method: str, request: Message) -> ProbeAnswer:
        """Make one call and wait for its end."""
        call: Any = self._channel.unary_unary(method)
        question = request.SerializeToString()
        self.carried_bytes += len(question)
        try:
            data = await call(question, metadata=self._metadata(), timeout=self._call_seconds)
        except grpc.aio.AioRpcError as failure:
            return _failed(failure)
        self.carried_bytes += len(data)
        return ProbeAnswer(grpc.StatusCode.OK, data=data)

    async def repeat(self, method: str, request: Message, times: int) -> tuple[int, ProbeAnswer]:
        """Make a call whose stream has the same request `times` times. Returns the bytes that came, and the call's end."""
        method_call: Any = self._channel.stream_stream(method)
        question = request.SerializeToString()
        self.carried_bytes += len(question) * times
        answers = method_call(itertools.repeat(question, times), metadata=self._metadata(), timeout=self._call_seconds)
        received, ended = 0, ProbeAnswer(grpc.StatusCode.OK)
        try:
            async for answer in answers:
                received += len(answer)
        except grpc.aio.AioRpcError as failure:
            ended = _failed(failure)
        self.carried_bytes += received
        return received, ended


def _failed(failure: grpc.aio.AioRpcError) -> ProbeAnswer:
    return ProbeAnswer(failure.code(), one_line(failure.details() or failure.code().name))
