"""A server that stands before a trainer, passes every call on, and keeps what went either way, as an ear on the wire."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from shared.wire.isthmus.v1.link_pb2 import LinkMessage

_ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_LINK = "/isthmus.v1.TrainerService/Link"


class Recorder(grpc.GenericRpcHandler):
    """Passes calls of any method on to a trainer."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.messages: dict[str, list[bytes]] = defaultdict(list)
        """Messages that went either way, by method, in their order."""
        self._channel = channel

    @property
    def link_messages(self) -> Iterator[LinkMessage]:
        """Yield the messages that went over links."""
        return map(LinkMessage.FromString, self.messages[_LINK])

    def heard(self, data: bytes) -> bool:
        """Tell whether these bytes have gone by, in whatever call."""
        return any(data in b"".join(kept) for kept in self.messages.values())

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See `grpc.GenericRpcHandler`."""
        method = handler_call_details.method

        async def pass_on(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            said = [(key, value) for key, value in context.invocation_metadata() if key != "user-agent"]
            call = self._channel.stream_stream(method)(self._kept(method, requests), metadata=said)
            try:
                async for answer in self._kept(method, call):
                    yield answer
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details(), error.trailing_metadata())
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(pass_on)

    async def _kept(self, method: str, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            self.messages[method].append(bytes(message))
            yield message


@asynccontextmanager
async def recorded(address: str) -> AsyncIterator[tuple[str, Recorder]]:
    """An address at which the trainer at `address` answers, and what is heard there."""
    async with grpc.aio.insecure_channel(address, options=_ANY_SIZE) as channel:
        recorder, server = Recorder(channel), grpc.aio.server(options=_ANY_SIZE)
        server.add_generic_rpc_handlers((recorder,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}", recorder
        finally:
            await server.stop(None)
