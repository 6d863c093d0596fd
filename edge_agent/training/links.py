"""The links of this device's worker to trainers: dialled, served, and dialled again when they are lost."""

import asyncio
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from edge_agent.sessions.member import FAREWELL_SECONDS
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.listener import RunListener
from shared.client.retry import Spacing
from shared.client.stream_call import LinkCall, StreamListener
from shared.errors import IsthmusError, ProtocolError, UnreachableError
from shared.placement import AGENT
from shared.runtime.worker_run import WorkerRun
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1.link_pb2 import LinkOpening

_log = structlog.get_logger(__name__)


class Links:
    """All links of one run of this worker; they are kept up until the block is left. Made and used on the event loop."""

    def __init__(self, session: OpenSession, run: WorkerRun, listener: RunListener, evaluation: int = 0) -> None:
        """evaluation: the number of the evaluation that they are for; 0 for training.

        A trainer takes part in an evaluation for as long as a call lasts that is lost with the link, so those links are dialled
        once.
        """
        self._session = session
        self._run = run
        self._listener = listener
        self._evaluation = evaluation
        self._calls: dict[str, LinkCall] = {}
        self._is_ending = False
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with what dialling again cannot mend, or has not for as long as the user allows."""
        run.keep_links()
        self._keeping = [asyncio.create_task(self._keep_up(peer)) for peer in run.links]

    @property
    def attached(self) -> bool:
        """Whether every link is up."""
        return not self._is_ending and len(self._calls) == len(self._run.links)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the links, with nothing under way, or after a failure give them up."""
        self._is_ending = True
        if kind is None and self._keeping:
            self._run.end_links()
            await asyncio.wait(self._keeping, timeout=FAREWELL_SECONDS)
        for call in self._calls.values():
            call.cancel()
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        if self.failure.done():
            self.failure.exception()  # whoever cares has seen it
        else:
            self.failure.cancel()

    async def _keep_up(self, peer: str) -> None:
        spacing = Spacing()
        try:
            while not self._is_ending:
                call = await self._dial(peer)
                try:
                    await self._serve(peer, call)
                except UnreachableError as lost:
                    if self._evaluation or self._session.retry.give_up_seconds == 0:
                        raise
                    _log.warning("link lost; dialling again", trainer=peer, reason=str(lost))
                    await spacing.wait(self._run.oldest_step)
                else:
                    if not self._is_ending:
                        raise ProtocolError(f"trainer {peer!r} ended the link in the middle of training")
        except Exception as failure:
            self._fail(failure)

    async def _dial(self, peer: str) -> LinkCall:
        """Dial until the trainer answers, for as long as the user allows."""
        member, end = self._session.members[peer], self._run.links[peer]
        opening = LinkOpening(
            protocol_version=PROTOCOL_VERSION,
            session_id=member.session_id,
            session_term=self._session.fence.session_term,
            worker=AGENT,
            evaluation=self._evaluation,
        )
        delivered = _ignore if self._evaluation else partial(self._listener.delivered, peer)
        listener = StreamListener(end.accept, self._owed, delivered)
        call, _ = await self._session.retry.run(lambda: member.client.link(opening, listener))
        return call

    async def _serve(self, peer: str, call: LinkCall) -> None:
        """Serve the stream to its end."""
        self._calls[peer] = call
        if self._evaluation == 0:
            self._listener.attached(peer, call.stream)
        try:
            await self._run.serve(peer, call.stream, call.end_writing)
        except IsthmusError:
            if self._evaluation == 0:
                self._listener.link_lost(peer)
            raise
        finally:
            del self._calls[peer]
            call.cancel()
            if self._evaluation == 0:
                self._listener.detached(peer)

    def _owed(self) -> int | None:
        """The oldest step that somebody has still to do; None with nothing in flight."""
        oldest = self._run.oldest_step
        return oldest if oldest < self._run.begun_step else None

    def _fail(self, failure: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(failure)


def _ignore(*_news: object) -> None:
    pass
