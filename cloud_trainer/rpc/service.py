"""The RPCs of `TrainerService`: each finds its session, calls the part that does the work, and turns errors into statuses."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

import grpc
import structlog
import torch
from structlog.contextvars import bound_contextvars

from cloud_trainer.calibration.copy_trainings import CopyTrainings
from cloud_trainer.config import GROUPS_FOLDER, TrainerCheckpointsConfig, TrainerConfig
from cloud_trainer.control.service import TrainerControl
from cloud_trainer.groups.groups import Groups
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.peers.dialer import PeerDialer
from cloud_trainer.rpc.blocks import BlockReceiver, named_checkpoint, send_block, send_stored_block
from cloud_trainer.rpc.link_rpc import LinkRpc
from cloud_trainer.rpc.offered_blocks import OfferedBlocks, check_offered
from cloud_trainer.rpc.relays import Relays
from cloud_trainer.rpc.session_calls import SessionCalls
from cloud_trainer.rpc.shutdown import TrainerShutdown
from cloud_trainer.sessions.checkpointer import SessionCheckpointer
from cloud_trainer.sessions.fencing import Fencing, check_version
from cloud_trainer.sessions.joining import Joining
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.opened_model import check_request, run_of
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.session_store import Quota, SessionStore
from cloud_trainer.sessions.shared_store import OtherParts
from cloud_trainer.sessions.stored_sessions import SessionOpening
from cloud_trainer.sessions.threads import TrainerThreads
from cloud_trainer.sessions.worker.built_worker import build_worker
from cloud_trainer.sessions.worker.session_worker import SessionWorker
from shared.checkpoint import Files, open_files
from shared.errors import ProtocolError, StorageError
from shared.factory import is_allowed
from shared.runtime.placement_executor import Threads
from shared.telemetry.logs import bind_run
from shared.transport.auth.callers import caller
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError
from shared.transport.stream.packets import Damaged, Packet, undamaged
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


class TrainerService:
    """The RPCs of one trainer, and all its sessions."""

    def __init__(self, config: TrainerConfig, device: torch.device, metrics: TrainerMetrics) -> None:
        self._config = config
        self._device = device
        self._metrics = metrics
        self._limits = Limits(
            config.server.max_tensor_bytes,
            config.server.max_staleness,
            config.server.max_session_bytes,
            config.server.max_session_modules,
            config.server.max_build_seconds,
            config.server.accept_inputs,
            config.server.max_recalled_bytes,
        )
        self.sessions = SessionRegistry(
            config.server.max_sessions,
            config.server.session_idle_seconds,
            config.server.unattached_seconds,
            self._expired,
            config.server.max_sessions_per_subject,
        )
        metrics.watch(self.sessions)
        self._threads = TrainerThreads()
        checkpoints = config.checkpoints
        quota = Quota(checkpoints.max_sessions_per_subject, checkpoints.max_bytes_per_subject)
        location = _location(checkpoints)
        own = None if location is None else location.folder(checkpoints.name)
        others = OtherParts(location, checkpoints.name)
        self._store = SessionStore(own, checkpoints.keep, quota, others=others)
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks that end expired sessions."""
        self.groups = Groups(
            config.groups,
            None if location is None else location.folder(f"{checkpoints.name}{GROUPS_FOLDER}"),
            self._store.disk,
            self._threads,
            config.models.allowed,
            self._limits,
            device,
            self._end_replaced,
            checkpoints.step_log,
        )
        metrics.watch_groups(self.groups.all)
        self._fencing = Fencing(self.sessions, self._store)
        self._checkpointer = SessionCheckpointer(self._store, self._threads)
        self.copies = CopyTrainings(config, self._limits, device)
        self._shutdown = TrainerShutdown(self.sessions, self._checkpointer)
        self.joining = Joining(self.sessions, self._store, self._fencing, self._threads, self._build, self.groups.begin)
        dialer = PeerDialer(config.peers, config.link, insecure=config.server.insecure)
        self.session_calls = SessionCalls(self.sessions, self.groups, self._checkpointer, self._threads, dialer)
        self.offered_blocks = OfferedBlocks(self.sessions, self._store, self._threads, dialer)
        self.relays = Relays(dialer, config.peers.max_relays_per_subject)
        self.link_rpc = LinkRpc(config.link, self.sessions, self._shutdown)

    @property
    def answers(self) -> tuple[object, ...]:
        """The parts that answer the RPCs, each by a method of its name."""
        return (
            self,
            self.joining,
            self.session_calls,
            self.offered_blocks,
            self.copies,
            self.link_rpc,
            self.relays,
        )

    def control(self, stopping: asyncio.Event) -> TrainerControl:
        """The service that shows this trainer to operators and lets them act on it. stopping: set to stop the trainer."""
        device = str(self._device)
        return TrainerControl(
            self.sessions, self.groups.all, self._store, self._metrics, self.end_session, stopping, device
        )

    async def tidy(self) -> None:
        """Remove sessions that were not resumed for too long."""
        after_seconds = self._config.checkpoints.forget_after_days * 86_400
        await self._store.forget_abandoned(after_seconds, self._is_live)

    async def renew(self) -> None:
        """Show other trainers on the same store which sessions are here."""
        await self._store.renew(self._is_live)

    def _is_live(self, session_id: str) -> bool:
        return session_id in self.sessions or session_id in self._fencing

    async def stop(self, seconds: float) -> None:
        """Have every agent end its batches and take a checkpoint. Returns when all have, or after so many seconds."""
        await self._shutdown.run(seconds)

    async def close(self, seconds: float) -> bool:
        """End the threads; called when the server has stopped. Returns whether all computation ended in so many seconds."""
        self.sessions.close()
        for ending in self._ending:
            ending.cancel()
        deadline, sessions = time.monotonic() + seconds, self.sessions.built
        for session in sessions:
            self.sessions.remove(session)
        for part in (asyncio.gather(*map(self._end, sessions)), self.groups.close()):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds / 2):
                    await part
        ended = self._threads.close(max(deadline - time.monotonic(), 0.0))
        self._store.close()
        return ended

    async def probe(self, request: pb.ProbeRequest, _context: Context) -> pb.ProbeResponse:
        """Tell an agent that may open a session what it would find here. Raises StatusError for another protocol version."""
        check_version(request.protocol_version)
        return pb.ProbeResponse(
            stopping=self._shutdown.begun,
            model_allowed=is_allowed(request.factory, self._config.models.allowed),
            sessions=len(self.sessions),
            free_sessions=self.sessions.free_for_caller,
            session_bytes=self._config.server.max_session_bytes,
            busy=self._threads.busy_share.of_last_seconds(),
        )

    async def open_session(self, request: pb.OpenSessionRequest, _context: Context) -> pb.OpenSessionResponse:
        """Build a session at the agent's request."""
        check_version(request.protocol_version)
        self._shutdown.check_open()
        check_request(request)
        self.groups.check_may_open(request)
        session_id = self.sessions.reserve()
        bind_run(run_of(request, session_id), session_id)
        session: Session | None = None
        try:
            await self._reserve_room(session_id)
            session = await self._build(request, request.placement, session_id)
            digests = await self._threads.build(session.blocks.digests)
            frozen_digests = await self._threads.build(session.blocks.frozen_digests)
            if not session.is_member:
                await self._store.keep_record(session_id, SessionOpening(request, 0, caller().subject))
            group_steps = await self.groups.occupy(session)
        except BaseException:
            self.sessions.release(session_id)
            if session is not None:
                await self._end(session)
            raise
        finally:
            self._store.release_room(session_id)
        self.sessions.add(session)
        _log.info(
            "session opened",
            model=request.model.factory,
            edge_blocks=session.worker.deployment.edge_blocks,
        )
        return pb.OpenSessionResponse(
            session_id=session_id,
            block_digests=digests,
            frozen_digests=frozen_digests,
            max_message_bytes=self._config.server.max_message_bytes,
            max_staleness=session.memory.max_staleness,
            group_steps=group_steps,
            leaves_out_late=self.groups.leaves_out_late(session),
        )

    async def _reserve_room(self, session_id: str) -> None:
        """Raises StatusError where no further session of the caller can be stored."""
        subject = caller().subject
        try:
            if await self._store.reserve_room(session_id, subject, self._is_live):
                return
        except StorageError as failure:
            _log.warning("kept sessions cannot be listed", reason=str(failure))
            return
        limit = self._config.checkpoints.max_sessions_per_subject
        raise StatusError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{limit} unfinished sessions of {subject or 'this caller'!r} are kept, which is the limit of one subject "
            "(checkpoints.max_sessions_per_subject); close one that is not needed (cloud-trainer close)",
        )

    async def _build(self, request: pb.OpenSessionRequest, placement: pb.Placement, session_id: str) -> Session:
        config = self._config
        built = await self._threads.build(
            build_worker,
            request,
            placement,
            session_id,
            config.models.allowed,
            self._limits,
            self._device,
            config.checkpoints.step_log,
            self._store.recall_folder(session_id),
        )
        threads = Threads(self._threads.compute_lane(session_id), self._threads.codec_lane(session_id))
        give = self.groups.taker_of_gradients(request, session_id)
        worker = await SessionWorker.made(built, threads, self._metrics, give)
        return Session(session_id, request, built.judge, worker)

    async def upload_block(
        self, requests: AsyncIterator[Packet[pb.UploadBlockRequest] | Damaged], _context: Context
    ) -> pb.UploadBlockResponse:
        """Replace one block."""
        receiver: BlockReceiver | None = None
        with ExitStack() as uses:
            async for received in requests:
                packet = undamaged(received)
                if receiver is None:
                    session = uses.enter_context(self.sessions.using(packet.message.session_id))
                    receiver, fence = BlockReceiver(session, packet.message), packet.message.fence
                    uses.callback(receiver.close)
                if (tensor := receiver.add(packet)) is not None and (name := receiver.checkpoint) is not None:
                    await self.offered_blocks.keep(session, fence, name, tensor.key.block, tensor.payload)
                    return pb.UploadBlockResponse()
                if tensor is not None:
                    return pb.UploadBlockResponse(
                        block_digest=await receiver.take(tensor, self._threads.compute_lane(session.id))
                    )
        raise ProtocolError("the stream ended before the block was whole")

    async def download_block(self, request: pb.DownloadBlockRequest, context: Context) -> None:
        """Send one block."""
        chunk_bytes = self._config.link.chunk_bytes
        with self.sessions.using(request.session_id) as session:
            name, block = named_checkpoint(request), request.block
            check_offered(session.id, block, name)
            if name is None:
                session.blocks.check_held(block)
            else:
                session.blocks.check_there(block)
            with session.memory.copying([block]):
                if name is None:
                    lane = self._threads.compute_lane(session.id)
                    weights_only = request.weights_only
                    of_group = {} if weights_only else await self.groups.averages(session, block)
                    packets = send_block(
                        session, block, chunk_bytes, lane, weights_only=weights_only, of_group=of_group
                    )
                else:
                    packets = send_stored_block(session, self._store, name, block, chunk_bytes)
                async for packet in packets:
                    await context.write(packet)

    async def close_session(self, request: pb.CloseSessionRequest, _context: Context) -> pb.CloseSessionResponse:
        """End a session, and its training stream with it."""
        session_id = request.session_id
        self.sessions.check_owner(session_id)
        if (session := self.sessions.find(session_id)) is not None:
            session.attachment.check_fence(request.fence)
        elif (record := await self._store.record(session_id)) is not None:
            if record.subject != caller().subject:
                raise self.sessions.not_found(session_id)
            bind_run(run_of(record.request, session_id), session_id)
            if request.fence.session_term < record.session_term:
                raise StatusError(grpc.StatusCode.ABORTED, f"session {session_id} was attached by another agent since")
        await self.end_session(session_id, request.resumable)
        return pb.CloseSessionResponse()

    async def end_session(self, session_id: str, resumable: bool) -> None:
        """Free a session, even one that is attached, and forget it unless it is to be resumable.

        Raises StatusError while it is being opened or built again: its new files would be removed.
        """
        session = self.sessions.find(session_id)
        if session is not None:
            bind_run(session.run_id, session_id)
        if session is None and self._is_live(session_id):
            raise StatusError(grpc.StatusCode.UNAVAILABLE, f"session {session_id} is being opened just now; try again")
        with self._fencing.ending(session_id):
            if session is not None:
                self.sessions.remove(session)
                session.forgotten = not resumable
                await self._end(session)
                _log.info("session closed", step=session.worker.next_step, resumable=resumable)
            await self._checkpointer.wait_for(session_id)
            if resumable or await self._is_attached_elsewhere(session):
                await self._store.let_go(session_id)
            else:
                await self._store.forget(session_id)

    async def _end(self, session: Session) -> None:
        """End a session. On return, nothing of it is being computed, and its group knows."""
        await session.end()
        await self.groups.vacate(session)

    async def _end_replaced(self, session: Session) -> None:
        """End the session of a group's member that has come back in another one, or has to."""
        self.sessions.remove(session)
        session.forgotten = session.is_replaced = True
        await self._end(session)
        await self._store.forget(session.id)
        _log.info("session closed: its member goes on in another one", session=session.id)

    async def _is_attached_elsewhere(self, session: Session | None) -> bool:
        """Tell whether another trainer on the same store has taken the session since."""
        with suppress(StorageError):
            if session is not None and (record := await self._store.record(session.id)) is not None:
                return record.session_term > session.attachment.term
        return False

    def _expired(self, session: Session) -> None:
        with bound_contextvars(run=session.run_id, session=session.id):  # another session has its place
            _log.warning("session freed: nobody used it", attached_before=session.attachment.begun)
            until_ended = ExitStack()
            until_ended.enter_context(self._fencing.ending(session.id))  # Now: a call may come before the task begins.
            ending = asyncio.create_task(self._end_expired(session, until_ended))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end_expired(self, session: Session, until_ended: ExitStack) -> None:
        with until_ended:
            await self._end(session)
            if session.attachment.begun:
                await self._store.let_go(session.id)
            else:  # Without a checkpoint, it cannot be resumed.
                await self._store.forget(session.id)


def _location(config: TrainerCheckpointsConfig) -> Files | None:
    """Raises ConfigError for a location that cannot be."""
    return None if config.location == "none" else open_files(config.location, "checkpoints.location")
