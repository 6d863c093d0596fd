"""The links of this device's worker to trainers: dialled, served, and dialled again when they are lost."""

import asyncio
from types import TracebackType
from typing import Self

import structlog

from edge_agent.sessions.open_session import FAREWELL_SECONDS, OpenSession
from edge_agent.training.attempts import Attempts
from edge_agent.training.listener import RunListener
from shared.client.stream_call import StreamListener
from shared.client.trainer import LinkCall
from shared.errors import ProtocolError, UnreachableError
from shared.placement import AGENT
from shared.runtime.worker_run import WorkerRun
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1.link_pb2 import LinkOpening

_log = structlog.get_logger(__name__)


class Links:
    """All links of one run of this worker; they are kept up until the block is left. Made and used on the event loop."""

    def __init__(self, session: OpenSession, run: WorkerRun, listener: RunListener, evaluation: int = 0) -> None:
        """evaluation: the number of the evaluation that they are for; 0 for training."""
        self._session = session
        self._run = run
        self._listener = listener
        self._evaluation = evaluation
        self._calls: dict[str, LinkCall] = {}
        self._is_ending = False
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with what dialling again cannot mend."""
        self._keeping = [asyncio.create_task(self._keep_up(peer)) for peer in run.links]

    @property
    def attached(self) -> bool:
        """Whether every link is up."""
        return self._calls.keys() == self._run.links.keys()

    def call(self, peer: str) -> LinkCall | None:
        """The call that carries a link now; None where it is lost."""
        return self._calls.get(peer)

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
        attempts = Attempts()
        while True:
            try:
                await self._serve(peer)
                if self._is_ending:
                    return
                raise ProtocolError(f"trainer {peer!r} ended the link in the middle of training")
            except UnreachableError as lost:
                if self._session.retry.give_up_seconds == 0:
                    self._fail(lost)
                    return
                _log.warning("link lost; dialling again", trainer=peer, reason=str(lost))
                await attempts.wait(self._run.oldest_step)
            except Exception as failure:
                self._fail(failure)
                return

    async def _serve(self, peer: str) -> None:
        """Dial, and serve the stream to its end."""
        member, end = self._session.members[peer], self._run.links[peer]
        opening = LinkOpening(
            protocol_version=PROTOCOL_VERSION,
            session_id=member.session_id,
            session_term=self._session.fence.session_term,
            worker=AGENT,
            evaluation=self._evaluation,
        )
        listener = StreamListener(end.accept, self._owed, self._listener.delivered)
        call, _ = await self._session.retry.run(lambda: member.client.link(opening, listener))
        self._calls[peer] = call
        if self._evaluation == 0:
            self._listener.attached(call.stream)
        try:
            await self._run.serve(peer, call.stream, call.end_writing)
        finally:
            del self._calls[peer]
            call.cancel()
            if self._evaluation == 0:
                self._listener.detached()

    def _owed(self) -> int | None:
        """The oldest step that somebody has still to do; None with nothing in flight."""
        oldest = self._run.oldest_step
        return oldest if oldest < self._run.begun_step else None

    def _fail(self, failure: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(failure)
