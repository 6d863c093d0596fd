"""An open session: its agent, its links, and the change of it that is under way, one at a time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc

from cloud_trainer.peers.dialer import PeerDialer
from cloud_trainer.peers.peer_links import PeerLinks
from cloud_trainer.sessions.links import SessionLinks
from cloud_trainer.sessions.opened_model import run_of
from cloud_trainer.sessions.worker.evaluation import Evaluations
from cloud_trainer.sessions.worker.judging import PlacementJudge
from cloud_trainer.sessions.worker.session_worker import SessionWorker
from shared.errors import ProtocolError
from shared.placement import AGENT, Placement
from shared.runtime.placement_executor import PlacementExecutor
from shared.transport.auth.callers import caller_host
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class Session:
    """A session, from its opening to its end. Used on the event loop."""

    def __init__(
        self,
        session_id: str,
        request: pb.OpenSessionRequest,
        judge: PlacementJudge,
        worker: SessionWorker,
    ) -> None:
        """request: the one that opened the session. worker: it has begun to compute."""
        self.id = session_id
        self.run_id = run_of(request, session_id)
        self.request = request
        self.judge = judge
        self.memory = judge.memory
        self.worker = worker
        self.blocks = worker.blocks
        self.figures = worker.figures
        self.links = SessionLinks(session_id)
        self.attachment = self.links.attachment
        self.tickets = self.links.tickets
        self.forgotten = False
        """True if it is closed for good. Nothing is stored from which it could be resumed."""
        self.is_replaced = False
        """True if its agent, a group's member, has to go on in another session."""
        self.evaluations = Evaluations(worker, self.links)
        self._changing = asyncio.Lock()
        self.ended = asyncio.Event()
        """Set once the session has ended."""

    @property
    def is_member(self) -> bool:
        """Tell whether it is of a group's member, and does not train by itself."""
        return self.request.HasField("group")

    def executor_of(self, evaluation: int) -> PlacementExecutor:
        """Return the steps of an evaluation, or of training (0). Raises StatusError for an unknown evaluation."""
        executor = self.evaluations.executor(evaluation) if evaluation else self.worker.executor
        if executor is None:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"evaluation {evaluation} of session {self.id} is not under way"
            )
        return executor

    def issue_tickets(self, evaluation: int = 0) -> list[pb.Ticket]:
        """Issue the tickets with which other trainers dial this one, for an evaluation or for training (0)."""
        trainers = [dialer for dialer in self.worker.dialers(evaluation) if dialer != AGENT]
        issued = self.tickets.issue(self.attachment.term, trainers, evaluation)
        return [pb.Ticket(worker=worker, ticket=ticket) for worker, ticket in issued.items()]

    def check_arriving(self, block: int) -> int:
        """Return `block` if its state may be uploaded now. Raises ProtocolError or StatusError otherwise."""
        self.blocks.check_there(block)
        if self.attachment.begun and self.worker.updates(block):
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"block {block} cannot be replaced now: once session {self.id} trains, only blocks can be brought that "
                f"{self.worker.name!r} does not update",
            )
        return block

    def check_named(self, session_id: str) -> None:
        """Refuse a message that names another session than its stream's. Raises ProtocolError."""
        if session_id != self.id:
            raise ProtocolError(f"a message for session {session_id[:40]!r} came on a stream of session {self.id!r}")

    def check_untrained(self) -> None:
        """Refuse to measure blocks once the session trains, because the backward pass of a step may need them. Raises
        StatusError."""
        if self.attachment.begun:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {self.id} trains; blocks are measured before that"
            )

    def check_joined(self, fence: pb.Fence) -> None:
        """Refuse a call of an agent that did not join last. Raises StatusError."""
        if fence.session_term != self.attachment.term or not self.attachment.begun:
            raise self.attachment.refusal(fence.session_term)

    @asynccontextmanager
    async def changing(self, fence: pb.Fence) -> AsyncIterator[None]:
        """Change the session alone: no other call changes it meanwhile.

        Raises StatusError for an agent that did not join last, and for a session that was ended.
        """
        async with self._changing:
            self.check_joined(fence)
            if self.ended.is_set():
                raise StatusError(grpc.StatusCode.ABORTED, f"session {self.id} was closed meanwhile")
            yield

    async def join(self, session_term: int) -> None:
        """Give the session to another agent, whose term is stored. All that the previous agent began ends."""
        self.attachment.term, self.attachment.host = session_term, caller_host()
        self.tickets.withdraw_all_offers()
        async with self._changing:
            await self.end_links()
            await self.worker.give_up()
            self.attachment.lost_at = None  # Its agent is there, linked or not.
            self.evaluations.begin_again()

    def check_goes_back(self) -> None:
        """Refuse a checkpoint in the session of a group's member. Raises StatusError."""
        if self.is_member:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT, "a member of a group goes back to no checkpoint but with the group"
            )

    def check_may_follow(self, placement: Placement) -> None:
        """Refuse another placement in the session of a group's member, but for another exchange. Raises StatusError."""
        now = self.worker.placement
        if self.is_member and replace(placement, version=now.version, exchange=now.exchange) != now:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                "a member of a group keeps its placement; it may change its exchange alone",
            )

    async def dial(self, peers: Sequence[pb.Peer], evaluation: int, dialer: PeerDialer) -> None:
        """Dial other trainers, in place of those dialled before, for an evaluation or for training (0).

        Called inside `changing`. Raises StatusError or ProtocolError as `PeerLinks` does; then nothing has changed.
        """
        links = PeerLinks(self.executor_of(evaluation), peers, self.attachment.term, dialer, evaluation)
        await self.links.dial(evaluation, links)

    async def end(self) -> None:
        """End the session. On return, nothing of it is being computed."""
        async with self._changing:
            self.ended.set()
            await self.end_links()
            await self.worker.stop()

    async def end_links(self) -> None:
        """End all links and evaluations. The steps of training stay unchanged. Called inside `changing`."""
        await self.links.end_training()
        await self.evaluations.end()
