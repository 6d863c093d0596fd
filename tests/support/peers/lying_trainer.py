"""A trainer that lies: a real one, and before it a proxy that says something else than it does, in either direction."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import xxhash
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from shared.transport.rpc.call_status import CallStatus
from shared.transport.rpc.options import server_options
from tests.support.peers.strangers import METHODS

Lie = Callable[[str, bytes], bytes]
"""Given the name of a method and the bytes of a message, what is said in its place."""


def honest(_method: str, data: bytes) -> bytes:
    """Nothing else than the truth."""
    return data


class LyingTrainer(grpc.GenericRpcHandler):
    """Passes every call on to the real trainer, and lies on the way."""

    def __init__(self, real: grpc.aio.Channel) -> None:
        self._real = real
        self.of_requests: Lie = honest
        self.of_answers: Lie = honest
        self.refusals: list[tuple[str, grpc.StatusCode, str]] = []
        """Calls that the real trainer has ended with an error: the method, the status, and the sentence."""

    def service(self, details: Any) -> Any:
        """See gRPC: any method as if it were a stream both ways."""

        async def passed_on(requests: AsyncIterator[bytes], context: Any) -> None:
            name = details.method.rpartition("/")[2]

            async def upward() -> AsyncIterator[bytes]:
                async for request in requests:
                    yield self.of_requests(name, request)

            shown = [entry for entry in context.invocation_metadata() if entry[0] == "authorization"]
            call: Any = self._real.stream_stream(details.method)(upward(), metadata=shown)
            ending = CallStatus(call)
            try:
                async for answer in call:
                    await context.write(self.of_answers(name, answer))
            except grpc.aio.AioRpcError:
                failure = await ending.failure()
                assert failure is not None
                self.refusals.append((name, failure.code(), failure.details() or ""))
                metadata = tuple(failure.trailing_metadata() or ())
                await context.abort(failure.code(), failure.details() or "", metadata)
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(passed_on)


@asynccontextmanager
async def lying_trainer(address: str) -> AsyncIterator[tuple[LyingTrainer, str]]:
    """Serve a relay before the real trainer at an address, and yield it with its own address."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as real:
        trainer, server = LyingTrainer(real), grpc.aio.server(options=server_options(1 << 23, 30.0))
        server.add_generic_rpc_handlers((trainer,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield trainer, f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


def message_of(method: str, data: bytes, *, request: bool) -> Message:
    """A message of a method of ours, by its name."""
    descriptor = next(found for path, found in METHODS.items() if path.endswith(f"/{method}"))
    return GetMessageClass(descriptor.input_type if request else descriptor.output_type).FromString(data)


def bytes_of(message: Message) -> bytes:
    """A message as it travels, with a checksum that is right, where it has one."""
    if "checksum" not in message.DESCRIPTOR.fields_by_name:
        return message.SerializeToString()
    message.ClearField("checksum")
    body = message.SerializeToString()
    return body + b"\x79" + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def saying(method: str, change: Callable[[Any], None]) -> Lie:
    """Lies in the answers of one method alone: `change` is given each."""

    def lie(name: str, data: bytes) -> bytes:
        if name != method:
            return data
        answer = message_of(name, data, request=False)
        change(answer)
        return bytes_of(answer)

    return lie


def renamed(names: Mapping[str, str], *, request: bool) -> Lie:
    """Has every `session_id` that is one of these names called otherwise, wherever it stands in a message of ours."""

    def rename(message: Any) -> bool:
        found = False
        for field, value in message.ListFields():
            if field.name == "session_id" and value in names:
                setattr(message, field.name, names[value])
                found = True
            elif field.message_type is not None:
                inner = value if field.is_repeated else [value]
                for one in inner:
                    found = rename(one) or found
        return found

    def lie(name: str, data: bytes) -> bytes:
        if not any(path.endswith(f"TrainerService/{name}") for path in METHODS):
            return data
        message = message_of(name, data, request=request)
        return bytes_of(message) if rename(message) else data

    return lie
