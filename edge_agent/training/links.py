"""The links of this device's worker to trainers: dialled, served, and dialled again after a loss."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from edge_agent.coordinator import Action, LinkEnded
from edge_agent.sessions.messages import FAREWELL_SECONDS
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.events import LinkDown, LinkLost, LinkUp
from shared.client.link_call import LinkCall, StreamListener
from shared.client.redialled_link import RedialledLink
from shared.errors import IsthmusError, ProtocolError
from shared.events import Emit
from shared.runtime.placement_executor import PlacementExecutor


class Links:
    """All links of this worker's executor. They are kept up until the body ends. Made and used on the event loop."""

    def __init__(self, session: OpenSession, executor: PlacementExecutor, emit: Emit, evaluation: int = 0) -> None:
        """evaluation: number of the evaluation that they are for; 0 for training.

        A trainer takes part in an evaluation as long as a call lasts. The call is lost with the link, so these links
        are dialled once.
        """
        self._executor = executor
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with a failure that dialling again cannot mend, or has not mended for as long as the user allows."""
        executor.keep_links()
        self._ending = asyncio.Event()
        self._links = [_Link(session, executor, peer, emit, self._ending, evaluation) for peer in executor.ends]
        self._keeping = [asyncio.create_task(self._keep_up(link)) for link in self._links]

    @property
    def attached(self) -> bool:
        """Tell whether every link is up."""
        return not self._ending.is_set() and all(link.call is not None for link in self._links)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the links, with nothing under way. After a failure, give them up."""
        self._ending.set()
        if kind is None and self._keeping:
            self._executor.end_links()
            await asyncio.wait(self._keeping, timeout=FAREWELL_SECONDS)
        for link in self._links:
            if link.call is not None:
                link.call.cancel()
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        if self.failure.done():
            self.failure.exception()  # Its readers have seen it.
        else:
            self.failure.cancel()

    async def _keep_up(self, link: "_Link") -> None:
        try:
            await link.keep_up()
        except Exception as failure:
            if not self.failure.done():
                self.failure.set_exception(failure)


class _Link(RedialledLink):
    """A link to one trainer, for as long as the user allows it to be down."""

    def __init__(
        self,
        session: OpenSession,
        executor: PlacementExecutor,
        peer: str,
        emit: Emit,
        ending: asyncio.Event,
        evaluation: int,
    ) -> None:
        """ending: set when the link is told to end."""
        trainer = session.members[peer]
        super().__init__(executor, peer, trainer.session_id, session.stored.session_term, evaluation)
        self._ending = ending
        self._client = trainer.client
        self._retry = session.retry
        self._coordinator = session.coordinator
        self._emit = emit

    @asynccontextmanager
    async def dialled(self) -> AsyncIterator[LinkCall]:
        """Dial as `RedialledLink` does, until the trainer answers, for as long as the user allows."""
        listener = StreamListener(self.end.accept, lambda: self.executor.window.owed, self.end.note_delivered)
        call, _ = await self._retry.run(lambda: self._client.link(self.opening, listener))
        self._emit(LinkUp(self.peer, call.stream))
        try:
            yield call
        finally:
            call.cancel()
            self._emit(LinkDown(self.peer))

    async def serve(self, call: LinkCall) -> None:
        """Serve as `RedialledLink` does."""
        try:
            await self.executor.serve(self.peer, call.stream, call.end_writing)
        except IsthmusError:
            self._emit(LinkLost(self.peer))
            raise
        if not self._ending.is_set():
            raise ProtocolError(f"trainer {self.peer!r} ended the link in the middle of training")

    def error_that_ends(self, failure: IsthmusError) -> IsthmusError | None:
        """Answer as `RedialledLink` says, by the coordinator."""
        told = LinkEnded(failure, was_up=self.call is not None, is_of_evaluation=self.opening.evaluation != 0)
        return None if self._coordinator.tell(told) is Action.DIAL else failure
