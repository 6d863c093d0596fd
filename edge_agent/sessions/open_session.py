"""An open session of a placement: this agent's part in it, and what it asks of the trainers that have another."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import structlog
import torch

from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import CheckpointName
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.codec import FeedbackMode, codec_by_name
from shared.concurrency.tasks import gathered, meanwhile
from shared.errors import BusyError, GoneError, IsthmusError, ProtocolError, SessionLostError
from shared.execution.blocks import Method
from shared.model.chain import Block
from shared.placement import AGENT, Placement, document_of, held_blocks, links
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.worker_listener import WorkerListener
from shared.runtime.worker_run import Threads
from shared.tensor_wire import to_wire
from shared.training import block_state
from shared.training.losses import LossHead, check_labels
from shared.training.step_log import StepLog
from shared.transport.stream.framing import block_key
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
REMINDER_SECONDS = 15.0
"""Well below the time that a trainer keeps a session without a call before it is joined (server.unattached_seconds)."""
FAREWELL_SECONDS = 5.0
"""How long the end of a session may take. A trainer that does not hear of it frees the session by itself, later."""

Tickets = Mapping[str, Sequence[pb.Ticket]]
"""What the trainers let others dial them with, by the worker that listens."""


class Member(NamedTuple):
    """A trainer of the session, and the session by the id that it has given it."""

    client: TrainerClient
    session_id: str


class OpenSession:
    """A session that this agent has opened on all trainers with a part in it. Used on the event loop.

    Each of its calls is made once, and can be repeated without harm; `retry` waits for a trainer that is away.
    """

    def __init__(
        self,
        stored: StoredSession,
        members: Mapping[str, Member],
        experiment: Experiment,
        workers: Workers,
        retry: Retry,
        step_log: StepLog | None = None,
    ) -> None:
        """members: by the name of the worker."""
        self.stored = stored
        gone = stored.record.left_out
        self.members = {worker: member for worker, member in members.items() if worker not in gone}
        """The trainers with which it goes on."""
        self.left_out = {worker: member for worker, member in members.items() if worker in gone}
        """Those without which it goes on, because they were away for too long."""
        self.experiment = experiment
        self.workers = workers
        self.retry = retry
        self.step_log = step_log
        self.placement = experiment.placement
        """What is in force."""
        self.lineage = 0
        """The term in which all workers last went back to a checkpoint; 0 before the first time."""
        self._unused_term: int | None = None
        """A term that was counted up and that a busy trainer has not taken; the next attempt uses it."""
        self._equal_blocks: dict[str, set[int]] = {name: set() for name in members}
        """The static blocks, which training leaves as they are, that each trainer is known to have with our weights."""

    @property
    def id(self) -> str:
        """The id of the session on this device."""
        return self.stored.record.session_id

    @property
    def fence(self) -> pb.Fence:
        """What proves that this agent has the session."""
        return pb.Fence(session_term=self.stored.session_term)

    @property
    def resumable(self) -> bool:
        """Whether all workers have had a checkpoint of it."""
        return self.stored.shared is not None

    @property
    def first_step(self) -> int:
        """The step that training goes on with, as far as this device knows before it has joined."""
        return 0 if self.stored.shared is None else self.stored.shared.step

    def make_worker(self, listener: WorkerListener) -> PlacedWorker:
        """This device's worker, under the placement in force and from the first step. Called on the event loop."""
        experiment, deployment = self.experiment, self.experiment.config.deployment
        chain, loss = experiment.chain, experiment.recipe.loss
        setup = WorkerSetup(
            AGENT,
            experiment.held,
            Method(LossHead(loss, None), deployment.backward, FeedbackMode(deployment.feedback)),
            Threads(self.workers.compute, self.workers.codec),
            lambda labels: check_labels(loss, chain.features[0], chain.output, labels),
            listener,
            self.step_log,
        )
        return PlacedWorker(setup, self.placement, self.first_step)

    def leave_out(self, workers: Collection[str]) -> None:
        """Go on without these trainers, from a checkpoint that others have."""
        for worker in workers:
            self.left_out[worker] = self.members.pop(worker)

    def let_in(self, worker: str, member: Member) -> None:
        """Go on with a trainer again, which has nothing of the session that counts."""
        del self.left_out[worker]
        self.members[worker] = member
        self._equal_blocks[worker] = set()

    async def join(self) -> dict[str, pb.JoinSessionResponse]:
        """Become the only agent of the session at every trainer, and hear what each could go on with.

        Nothing is written on any side while a trainer does not answer. Raises GoneError where one has no such session.
        """
        await gathered(*(member.client.check_serving() for member in self.members.values()))
        term, self._unused_term = self._unused_term, None
        if term is None:
            term = await self.workers.disk.run(self.stored.next_term)
        try:
            answers = await gathered(
                *(member.client.join_session(member.session_id, term) for member in self.members.values())
            )
        except BusyError:
            if len(self.members) == 1:  # of several, another may have taken it
                self._unused_term = term
            raise
        except SessionLostError as lost:
            raise GoneError(str(lost)) from lost
        return dict(zip(self.members, answers, strict=True))

    async def restore(self, name: CheckpointName, placement: Placement) -> Tickets:
        """Have every trainer restore a checkpoint under a placement; static blocks are as here then.

        Where one cannot, the others come to an end first: what is interrupted in the middle leaves a session that is of no use.
        """

        async def restore(worker: str, member: Member) -> Sequence[pb.Ticket]:
            answer = await member.client.restore_worker(
                pb.RestoreWorkerRequest(
                    session_id=member.session_id,
                    fence=self.fence,
                    checkpoint=pb.CheckpointName(lineage=name.lineage, step=name.step),
                    placement=placement_message(placement),
                )
            )
            await self.upload_differing(worker, list(answer.block_digests), placement, static_only=True)
            return answer.tickets

        restoring = (restore(worker, member) for worker, member in self.members.items())
        tickets: dict[str, Sequence[pb.Ticket]] = {}
        for worker, outcome in zip(self.members, await asyncio.gather(*restoring, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            tickets[worker] = outcome
        self.placement, self.lineage = placement, self.stored.session_term
        return tickets

    async def commit(self, placement: Placement, next_step: int) -> Tickets:
        """Put a placement into force at every trainer, once all of them have said that they can.

        Where an answer was lost, ask again; that changes nothing more.
        """

        async def commit(member: Member, prepare: bool) -> Sequence[pb.Ticket]:
            request = pb.CommitPlacementRequest(
                session_id=member.session_id,
                fence=self.fence,
                next_step=next_step,
                placement=placement_message(placement),
                prepare=prepare,
            )
            return (await member.client.commit_placement(request)).tickets

        await gathered(*(commit(member, prepare=True) for member in self.members.values()))
        found = await gathered(*(commit(member, prepare=False) for member in self.members.values()))
        return dict(zip(self.members, found, strict=True))

    async def dial_peers(self, tickets: Tickets, evaluation: int = 0) -> None:
        """Have the trainers dial each other, for training or for an evaluation. Without links among them nothing happens."""
        peers: dict[str, list[pb.Peer]] = {}
        for link in links(self.placement, self.experiment.facts, training=evaluation == 0):
            if link.dialer == AGENT:
                continue
            ticket = next((one.ticket for one in tickets[link.listener] if one.worker == link.dialer), None)
            if ticket is None:
                raise ProtocolError(f"trainer {link.listener!r} gave no ticket for {link.dialer!r}, which dials it")
            member = self.members[link.listener]
            peer = pb.Peer(
                worker=link.listener, address=member.client.address, session_id=member.session_id, ticket=ticket
            )
            peers.setdefault(link.dialer, []).append(peer)
        await gathered(
            *(
                self.members[dialer].client.dial_peers(
                    pb.DialPeersRequest(
                        session_id=self.members[dialer].session_id, fence=self.fence, peers=whom, evaluation=evaluation
                    )
                )
                for dialer, whom in peers.items()
            )
        )

    async def download_block(self, worker: str, block: Block, *, weights_only: bool) -> block_state.BlockTensors:
        """Download the state of a block from the trainer that holds it. Raises ProtocolError for bytes that are none."""
        data = await self._download(worker, block, weights_only=weights_only)
        return await self.workers.compute.run(block_state.deserialize, data)

    async def _download(
        self, worker: str, block: Block, *, weights_only: bool = False, checkpoint: CheckpointName | None = None
    ) -> bytes:
        member = self.members[worker]
        limit = block_state.max_serialized_bytes(block, self.experiment.recipe.optimizer)
        data = await member.client.download_block(
            member.session_id, block.index, limit, weights_only=weights_only, checkpoint=checkpoint
        )
        return bytes(data)

    async def bring_replicas(self, name: CheckpointName, sender: str, receiver: str, blocks: Sequence[int]) -> None:
        """Have a worker keep blocks of a checkpoint on its disk, as a trainer has them on its own.

        Raises StorageError where they cannot be written here.
        """
        if receiver != AGENT:
            await self.send_blocks(sender, receiver, dict.fromkeys(blocks, False), name)
            return
        store, chain, optimizer = self.stored.store, self.experiment.chain, self.experiment.recipe.optimizer
        assert store is not None, "without a folder there are no checkpoints"
        for index in blocks:
            state = await self._download(sender, chain.blocks[index], checkpoint=name)
            tensors = await self.workers.compute.run(block_state.deserialize, state)
            block_state.check(chain.blocks[index], optimizer, tensors)
            await self.workers.disk.run(store.save_replica, name, index, state)

    async def upload_block(
        self, worker: str, block: Block, tensors: block_state.BlockTensors, placement_version: int
    ) -> None:
        """Bring the state of a block to a trainer."""
        member = self.members[worker]
        data = await self.workers.compute.run(block_state.serialize, tensors)
        encoded = codec_by_name("raw").encode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        tensor = to_wire(encoded, block_key(block.index), placement_version)
        await member.client.upload_block(member.session_id, tensor, self.fence)
        if block_state.is_static(block):
            self._equal_blocks[worker].add(block.index)

    async def send_blocks(
        self, sender: str, receiver: str, weights_only: Mapping[int, bool], checkpoint: CheckpointName | None = None
    ) -> None:
        """Have one trainer bring blocks straight from another one; none of them passes this device.

        weights_only: of each block, by index, whether its optimizer state stays behind. checkpoint: the one in which they are
        brought, from disk to disk; None from memory to memory.
        """
        named = None if checkpoint is None else pb.CheckpointName(lineage=checkpoint.lineage, step=checkpoint.step)
        here, peer = self.members[receiver], await self.offered(sender, receiver, weights_only, named)
        wanted = [pb.WantedBlock(block=index, weights_only=alone) for index, alone in weights_only.items()]
        await here.client.fetch_blocks(
            pb.FetchBlocksRequest(
                session_id=here.session_id, fence=self.fence, peer=peer, blocks=wanted, checkpoint=named
            )
        )
        blocks = self.experiment.chain.blocks
        self._equal_blocks[receiver] |= {index for index in weights_only if block_state.is_static(blocks[index])}

    async def offered(
        self, sender: str, receiver: str, blocks: Iterable[int], checkpoint: pb.CheckpointName | None = None
    ) -> pb.Peer:
        """A trainer as another one dials it, with a ticket for these blocks, of which it holds one at least."""
        there = self.members[sender]
        ticket = await there.client.offer_blocks(
            pb.OfferBlocksRequest(
                session_id=there.session_id,
                fence=self.fence,
                worker=receiver,
                blocks=list(blocks),
                checkpoint=checkpoint,
            )
        )
        return pb.Peer(worker=sender, address=there.client.address, session_id=there.session_id, ticket=ticket)

    def must_move(self, worker: str, block: Block) -> bool:
        """Whether a block that a trainer is to run has to be uploaded: a static block that is there already has not."""
        return block.index not in self._equal_blocks[worker]

    async def upload_differing(
        self, worker: str, digests: list[int], placement: Placement, *, static_only: bool
    ) -> None:
        """Upload the blocks of a trainer that differ from ours by their digests.

        static_only: leave out those that training changes, whose weights at the trainer are the right ones.
        Raises ProtocolError for digests of another model.
        """
        blocks, compute = self.experiment.chain.blocks, self.workers.compute
        if len(digests) != len(blocks):
            raise ProtocolError(
                f"trainer {worker!r} sent digests of {len(digests)} blocks; the model has {len(blocks)}"
            )
        held = held_blocks(placement, worker)
        for block in blocks:
            is_static = block_state.is_static(block)
            if not is_static and (static_only or block.index not in held):
                continue
            self._equal_blocks[worker].discard(block.index)
            if await compute.run(block_state.digest, block) == digests[block.index]:
                if is_static:
                    self._equal_blocks[worker].add(block.index)
            elif block.index in held:
                _log.info("the trainer starts from other weights; uploading ours", block=block.name, trainer=worker)
                await self.upload_block(worker, block, block_state.collect(block, None), placement.version)

    async def collect(self) -> None:
        """Bring the weights of the blocks that are elsewhere home, so that the user's module is whole."""
        for block in self.experiment.chain.blocks:
            if (owner := self.placement.owner(block.index)) != AGENT:
                download = partial(self.download_block, owner, block, weights_only=True)
                tensors = await self.retry.run(download)
                await self.workers.compute.run(block_state.restore, block, None, None, tensors)

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Remind the trainers of the session while the block runs; without a call for a minute they would free it."""

        async def remind() -> None:
            while True:
                await asyncio.sleep(REMINDER_SECONDS)
                with suppress(IsthmusError):  # the next call that needs the session says what is wrong
                    await self.max_staleness()

        async with meanwhile(remind()):
            yield

    async def max_staleness(self) -> int:
        """The largest K that every trainer allows the session; no limit where there is no trainer."""
        answers = await gathered(*(one.client.get_session(one.session_id) for one in self.members.values()))
        return min((answer.max_staleness for answer in answers), default=2**31)

    async def close(self) -> None:
        """End the session at every trainer for good. Tries once."""
        await self._end(resumable=False)

    async def abandon(self) -> None:
        """End the session after a failure; where all workers have a checkpoint, the trainers keep theirs.

        An error of this call is dropped, because the first failure is what matters.
        """
        with suppress(IsthmusError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._end(resumable=self.resumable)

    async def _end(self, *, resumable: bool) -> None:
        async def end(one: Member) -> None:
            await one.client.close_session(one.session_id, self.fence, resumable=resumable)

        await gathered(*(end(one) for one in self.members.values()))
        for one in self.left_out.values():
            with suppress(IsthmusError):  # where it is still away, it forgets the session by itself, later
                await end(one)


async def abandon_at(member: Member) -> None:
    """End a session at one trainer, before it was joined, after a failure. An error of this call is dropped."""
    with suppress(IsthmusError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await member.client.close_session(member.session_id, pb.Fence(), resumable=False)


def placement_message(placement: Placement) -> pb.Placement:
    """A placement as it travels."""
    return pb.Placement(version=placement.version, document_json=json.dumps(document_of(placement)))
