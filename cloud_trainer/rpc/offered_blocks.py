"""The calls by which blocks go straight from the trainer that has them to the one that gets them.

They go from memory to memory for another placement, or with a checkpoint from disk to disk, as replicas.
"""

import asyncio
from collections.abc import Sequence

import grpc
import structlog

from cloud_trainer.peers.dialer import PeerDialer
from cloud_trainer.rpc.blocks import check_replica, check_replica_of, load_block, named_checkpoint
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.session_registry import SessionRegistry
from cloud_trainer.sessions.session_store import SessionStore
from cloud_trainer.sessions.threads import TrainerThreads
from shared.bounds import is_worker
from shared.checkpoint import CheckpointName
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import (
    DamagedMessageError,
    IsthmusError,
    ProtocolError,
    StorageError,
    UnreachableError,
)
from shared.placement import AGENT
from shared.training import block_state
from shared.transport.auth.callers import Caller, caller, no_such_ticket
from shared.transport.auth.scopes import Scope
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import Kind, StatusError, passed_on
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
_AT_ONCE = 2
"""Blocks that a call fetches at a time: the peer copies one while another is on its way."""
_STORAGE_RETRY_SECONDS = 30.0
"""Delay before another attempt on a full disk: an operator has to make room."""
_SIGN_SECONDS = 0.5
"""Interval of the signs to the agent that blocks are still coming; the silence of the peer is watched here."""


class OfferedBlocks:
    """The answers. protos/isthmus/v1/trainer.proto says what each promises and refuses."""

    def __init__(
        self, sessions: SessionRegistry, store: SessionStore, threads: TrainerThreads, dialer: PeerDialer
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._threads = threads
        self._dialer = dialer

    def find_ticket(self, ticket: str) -> Caller | None:
        """Find the caller with a ticket for blocks: it counts as the owner of the session, and may do no more than that
        needs."""
        for _, owner, session in self._sessions.owned:
            if session is not None and (offer := session.tickets.find_offer(ticket)) is not None:
                return Caller(owner, frozenset({Scope.TRAIN, Scope.READ}), offer=offer)
        return None

    async def offer_blocks(self, request: pb.OfferBlocksRequest, _context: Context) -> pb.OfferBlocksResponse:
        """Let another trainer download blocks."""
        with self._sessions.using(request.session_id) as session:
            async with session.changing(request.fence):
                _check_each_once(request.blocks)
                if request.worker in (AGENT, session.worker.name) or not is_worker(request.worker):
                    raise ProtocolError(f"worker {request.worker[:40]!r} is no other trainer of this session")
                name = named_checkpoint(request)
                if name is None:
                    _check_held(session, request.blocks)
                else:
                    await self._check_stored(session, name)
                return pb.OfferBlocksResponse(ticket=session.tickets.offer(request.worker, request.blocks, name))

    async def fetch_blocks(self, request: pb.FetchBlocksRequest, context: Context) -> None:
        """Download blocks from another trainer, and say now and then that they are still coming."""
        with self._sessions.using(request.session_id) as session:
            session.check_joined(request.fence)
            _check_each_once([wanted.block for wanted in request.blocks])
            name = named_checkpoint(request)
            for wanted in request.blocks:
                if name is None:
                    session.check_arriving(wanted.block)
                else:
                    if wanted.weights_only:
                        raise ProtocolError(f"block {wanted.block} of a checkpoint is whole")
                    check_replica_of(session, name, wanted.block)
            self._dialer.check(request.peer)
            fetching = asyncio.create_task(self._fetch_all(session, request))
            try:
                while not (await asyncio.wait({fetching}, timeout=_SIGN_SECONDS))[0]:
                    await context.write(pb.FetchBlocksResponse())
                fetching.result()
            finally:
                fetching.cancel()
                await asyncio.gather(fetching, return_exceptions=True)

    async def _check_stored(self, session: Session, name: CheckpointName) -> None:
        """Raises StatusError where nothing of a checkpoint is on disk."""
        replicas = await self._store.replicas(session.id)
        if name not in replicas and name not in await self._store.names(session.id):
            raise StatusError(
                grpc.StatusCode.NOT_FOUND,
                f"checkpoint {name} is not at worker {session.worker.name!r}",
                kind=Kind.NOT_STORED,
            )

    async def _fetch_all(self, session: Session, request: pb.FetchBlocksRequest) -> None:
        left, peer = iter(request.blocks), request.peer
        try:
            async with self._dialer.client(peer.address) as client:

                async def fetch() -> None:
                    for wanted in left:
                        await self._fetch(session, request, client, wanted)

                await gathered(*(fetch() for _ in range(_AT_ONCE)))
        except StatusError:
            raise  # it is this trainer that refuses
        except IsthmusError as failure:
            lost = isinstance(failure, DamagedMessageError)  # a damaged message may arrive whole the next time
            kind = UnreachableError(str(failure)) if lost else failure
            what = f"worker {session.worker.name!r} cannot fetch blocks from {peer.worker[:40]!r}: {failure}"
            raise passed_on(kind, what) from failure
        _log.info("blocks fetched", peer=peer.worker, blocks=[wanted.block for wanted in request.blocks])

    async def _fetch(
        self, session: Session, request: pb.FetchBlocksRequest, client: TrainerClient, wanted: pb.WantedBlock
    ) -> None:
        held, memory, index, name = session.blocks.held, session.memory, wanted.block, named_checkpoint(request)
        reserved_bytes = 0

        def reserve(count: int) -> None:
            nonlocal reserved_bytes
            memory.begin_upload(count)
            reserved_bytes = count

        try:
            data = await client.download_block(
                request.peer.session_id,
                index,
                block_state.max_serialized_bytes(
                    held.chain.blocks[index], held.recipe.optimizer_of_states, averaged=held.recipe.ema is not None
                ),
                weights_only=wanted.weights_only,
                checkpoint=name,
                ticket=request.peer.ticket,
                announced=reserve,
            )
            if name is None:
                lane = self._threads.compute_lane(session.id)
                await lane.aside(load_block, session, request.fence, index, data)
            else:
                await self.keep(session, request.fence, name, index, data)
        finally:
            memory.end_upload(reserved_bytes)

    async def keep(
        self, session: Session, fence: pb.Fence, name: CheckpointName, block: int, state: bytes | memoryview
    ) -> None:
        """Write a replica of a block, as it came. Raises ProtocolError or StatusError."""
        await self._threads.compute_lane(session.id).aside(check_replica, session, block, state)
        session.check_joined(fence)
        try:
            await self._store.save_replica(session.id, name, block, state)
        except StorageError as failure:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"worker {session.worker.name!r} cannot keep block {block} of checkpoint {name}: {failure}",
                _STORAGE_RETRY_SECONDS,
            ) from failure


def check_offered(session_id: str, block: int, checkpoint: CheckpointName | None) -> None:
    """Refuse a caller with a ticket for other blocks than this one of this session. Raises StatusError."""
    offer = caller().offer
    asked = session_id, checkpoint
    if offer is not None and ((offer.session_id, offer.checkpoint) != asked or block not in offer.blocks):
        raise no_such_ticket()


def _check_held(session: Session, blocks: Sequence[int]) -> None:
    """Raises StatusError."""
    held = session.blocks.held.indices
    if missing := [block for block in blocks if block not in held]:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"worker {session.worker.name!r} does not hold blocks {missing}; it holds {list(held)}",
        )


def _check_each_once(blocks: Sequence[int]) -> None:
    """Raises ProtocolError."""
    if not blocks or len(set(blocks)) < len(blocks):
        raise ProtocolError(f"{len(blocks)} blocks are named; it must be one or more, each once")
