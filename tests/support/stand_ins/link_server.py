"""A server of the call Link alone: another trainer as a dialling one sees it, in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from cloud_trainer.sessions.tickets import Tickets
from shared.client.methods import SERVICE
from shared.codec import aligned_buffer
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.auth.callers import PeerLink
from shared.transport.rpc.options import server_options
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler
from shared.transport.stream.packets import Packet, PacketChannel, deserializer, serialize, undamaged
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpened
from tests.support.linked import CHUNK_BYTES

SESSION = "5e55" * 8
TERM = 3


class LinkServer:
    """A server of one worker's links, for peers that dial it with a ticket. `opened` and `ended` count its links."""

    def __init__(self, executor: PlacementExecutor, losses: Sequence[int] = ()) -> None:
        """losses: after how many packets of the dialler each link is lost, one after the other; then none is."""
        self.tickets = Tickets(SESSION)
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        """Status and sentence that refuse every further call; None where calls are served."""
        self.refused = asyncio.Event()
        """Set when a call was refused."""
        self.address = ""
        self.opened = self.ended = 0
        self._executor = executor
        self._lost_with = grpc.StatusCode.UNAVAILABLE
        self._losses = iter(losses)
        self._serving: set[asyncio.Task[Any]] = set()

    @property
    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for a gRPC server."""
        link = grpc.stream_stream_rpc_method_handler(self.link, deserializer(LinkMessage), serialize)
        return grpc.method_handlers_generic_handler(SERVICE, {"Link": link})

    async def link(self, _requests: Any, context: Any) -> None:
        """See `TrainerService.Link`."""
        if self.refusal is not None:
            self.refused.set()
            await context.abort(*self.refusal)
        ((_, authorization),) = [entry for entry in context.invocation_metadata() if entry[0] == "authorization"]
        ticket = self.tickets.find(authorization.removeprefix("Ticket "))
        opening = undamaged(await context.read()).message.opening
        link = PeerLink(opening.session_id, opening.session_term, opening.worker, opening.evaluation)
        following = None if ticket is None else self.tickets.take(ticket, link)
        if following is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a ticket that was used")
        await context.write(Packet(LinkMessage(opened=LinkOpened(next_ticket=following))))
        serving = asyncio.create_task(self._serve(opening.worker, context))
        self.opened += 1
        self._serving.add(serving)
        await asyncio.wait({serving})
        self._serving.discard(serving)
        if serving.cancelled():
            await context.abort(self._lost_with, "lost")
        serving.result()
        self.ended += 1

    def lose(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        """End all links that are open, each with this status."""
        self._lost_with = code
        for serving in self._serving:
            serving.cancel()

    async def _serve(self, worker: str, context: Any) -> None:
        left = next(self._losses, None)

        async def read() -> Any:
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    self.lose()
            packet = await context.read()
            return None if packet is grpc.aio.EOF else packet

        end = self._executor.ends[worker]
        stream: Duplex[LinkMessage, LinkMessage] = Duplex(
            LinkMessage,
            PacketChannel(read, context.write),
            Assembler(end.accept, aligned_buffer),
            CHUNK_BYTES,
            1 << 20,
            lambda *_: None,
        )
        await self._executor.serve(worker, stream)


@asynccontextmanager
async def serving_links(executor: PlacementExecutor, losses: Sequence[int] = ()) -> AsyncIterator[LinkServer]:
    """A server on a free port of loopback."""
    links = LinkServer(executor, losses)
    server = grpc.aio.server(options=server_options(1 << 23, 30.0))
    server.add_generic_rpc_handlers((links.handlers,))
    links.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield links
    finally:
        await server.stop(None)
