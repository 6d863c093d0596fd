"""An open session of a placement: this agent's part in it, and what it asks of the trainers that have another."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog

from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.member import FAREWELL_SECONDS, Member, Tickets, placement_message
from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import CheckpointName
from shared.client.retry import Retry
from shared.codec import FeedbackMode, row_of_bytes
from shared.concurrency.tasks import gathered, meanwhile
from shared.errors import IsthmusError, ProtocolError
from shared.execution.blocks import Method
from shared.model.chain import Block
from shared.placement import AGENT, Placement, PlacementPlan, held_blocks
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


class OpenSession:
    """A session that this agent has opened on all trainers with a part in it. Used on the event loop.

    Each of its calls is made once, and can be repeated without harm; `retry` waits for a trainer that is away.
    """

    def __init__(
        self,
        stored: StoredSession,
        members: Mapping[str, Member],
        plan: PlacementPlan,
        experiment: Experiment,
        workers: Workers,
        retry: Retry,
        step_log: StepLog | None = None,
    ) -> None:
        """members: by the name of the worker. plan: of the experiment's placement."""
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
        self.plan = plan
        """What is in force, with all that follows from it."""
        self.lineage = 0
        """The term in which all workers last went back to a checkpoint; 0 before the first time."""
        self.term_is_unused = False
        """Whether the term was counted up and a busy trainer has not taken it: the next attempt uses it."""
        self.needed = self.holders(self.placement)
        """The trainers without which nothing goes on."""
        self.absent: set[str] = set()
        """Trainers without blocks that have nothing of what is in force: they did not answer when they were asked last."""
        self.also_needed: set[str] = set()
        """Others without which the checkpoint that counts cannot be restored."""
        self.goes_back = False
        """Whether some worker has lost its state, so that all have to go back to a checkpoint."""
        self._equal_blocks: dict[str, set[int]] = {name: set() for name in members}
        """The static blocks, which training leaves as they are, that each trainer is known to have with our weights."""

    @property
    def placement(self) -> Placement:
        """What is in force."""
        return self.plan.placement

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

    async def make_worker(self, listener: WorkerListener) -> PlacedWorker:
        """This device's worker, under the placement in force and from the first step; it has begun to compute."""
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
        worker = await self.workers.compute.run(PlacedWorker, setup, self.plan, self.first_step)
        worker.start()
        return worker

    def leave_out(self, workers: Collection[str]) -> None:
        """Go on without these trainers, from a checkpoint that others have."""
        for worker in workers:
            self.left_out[worker] = self.members.pop(worker)
        self.needed = [worker for worker in self.needed if worker in self.members]

    def let_in(self, worker: str) -> None:
        """Have a trainer again that was left out. It is absent until it is joined."""
        self.replace_member(worker, self.left_out.pop(worker))
        self.absent.add(worker)

    def holders(self, placement: Placement) -> list[str]:
        """The trainers that hold blocks under a placement. Nobody else has a state that counts."""
        return [worker for worker in self.members if held_blocks(placement, worker)]

    def miss(self, worker: str, reason: str) -> None:
        """Go on without a trainer that has no blocks, until somebody wants to give it some."""
        if worker not in self.absent:
            self.absent.add(worker)
            _log.warning("a trainer without blocks is away; nothing waits for it", trainer=worker, reason=reason)

    def replace_member(self, worker: str, member: Member) -> None:
        """Go on with another session at a trainer, which has none of our blocks."""
        self.members[worker] = member
        self._equal_blocks[worker] = set()

    async def count_term_up(self) -> None:
        """Begin another term, on disk first. Raises StorageError."""
        if not self.term_is_unused:
            await self.workers.disk.run(self.stored.next_term)
        self.term_is_unused = False

    async def plan_of(self, placement: Placement) -> PlacementPlan:
        """A valid placement with all that follows from it, worked out beside the event loop."""
        return await self.workers.compute.run(PlacementPlan.of, placement, self.experiment.facts)

    async def join(self, worker: str) -> pb.JoinSessionResponse:
        """Become the only agent of the session at a trainer. Raises SessionLostError where it has none."""
        member = self.members[worker]
        return await member.client.join_session(member.session_id, self.stored.session_term)

    async def restore_at(self, worker: str, name: CheckpointName, placement: Placement) -> Sequence[pb.Ticket]:
        """Have a trainer restore the blocks of a checkpoint that it holds under a placement; static ones are as here then."""
        member = self.members[worker]
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

    async def prepare(self, worker: str, placement: Placement, next_step: int) -> None:
        """Ask a trainer whether a placement could come into force there. Raises the IsthmusError that it refuses with."""
        await self._commit_at(worker, placement, next_step, prepare=True)

    async def commit(self, placement: Placement, next_step: int) -> Tickets:
        """Put a placement into force at every trainer that has blocks then, once all of them have said that they can.

        Where an answer was lost, ask again; that changes nothing more. Who has no blocks any more is told, if it answers.
        """
        holding = self.holders(placement)
        found = await gathered(*(self._commit_at(worker, placement, next_step) for worker in holding))
        for worker in set(self.holders(self.placement)).difference(holding, self.absent):
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._commit_at(worker, placement, next_step)
            except (IsthmusError, TimeoutError) as failure:
                self.miss(worker, str(failure) or "it did not answer")
        return dict(zip(holding, found, strict=True))

    async def _commit_at(
        self, worker: str, placement: Placement, next_step: int, *, prepare: bool = False
    ) -> Sequence[pb.Ticket]:
        member = self.members[worker]
        request = pb.CommitPlacementRequest(
            session_id=member.session_id,
            fence=self.fence,
            next_step=next_step,
            placement=placement_message(placement),
            prepare=prepare,
            lineage=self.lineage,
        )
        return (await member.client.commit_placement(request)).tickets

    async def dial_peers(self, tickets: Tickets, evaluation: int = 0) -> None:
        """Have the trainers dial each other, for training or for an evaluation. Without links among them nothing happens."""
        peers: dict[str, list[pb.Peer]] = {}
        for link in (self.plan.evaluation if evaluation else self.plan.training).links:
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
        data = await self.download(worker, block, weights_only=weights_only)
        return await self.workers.compute.run(block_state.deserialize, data)

    async def download(
        self, worker: str, block: Block, *, weights_only: bool = False, checkpoint: CheckpointName | None = None
    ) -> bytes:
        """The same as bytes, from memory or from a checkpoint on the trainer's disk."""
        member = self.members[worker]
        limit = block_state.max_serialized_bytes(block, self.experiment.recipe.optimizer)
        data = await member.client.download_block(
            member.session_id, block.index, limit, weights_only=weights_only, checkpoint=checkpoint
        )
        return bytes(data)

    async def upload_block(
        self, worker: str, block: Block, tensors: block_state.BlockTensors, placement_version: int
    ) -> None:
        """Bring the state of a block to a trainer."""
        member = self.members[worker]
        data = await self.workers.compute.run(block_state.serialize, tensors)
        tensor = to_wire(row_of_bytes(data), block_key(block.index), placement_version)
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
        """Remind trainers without a link of the session while the block runs: without a call they would free it some time."""

        async def remind() -> None:
            while True:
                await asyncio.sleep(REMINDER_SECONDS)
                linked = self.holders(self.placement) if self.stored.session_term else []
                for worker in set(self.members).difference(linked, self.absent):
                    with suppress(IsthmusError):  # the next call that needs the session says what is wrong
                        await self.remind(worker)

        async with meanwhile(remind()):
            yield

    async def remind(self, worker: str) -> pb.GetSessionResponse:
        """What a trainer does with the session, which it keeps for another while then."""
        member = self.members[worker]
        return await member.client.get_session(member.session_id)

    async def max_staleness(self) -> int:
        """The largest K that every trainer with blocks allows the session; no limit where there is none."""
        answers = await gathered(*(self.remind(worker) for worker in self.holders(self.placement)))
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
        """Raises the IsthmusError of a trainer with blocks, once all have been told; others forget it by themselves, later."""
        everybody, holding = self.members | self.left_out, self.holders(self.placement)
        ending = [
            member.client.close_session(member.session_id, self.fence, resumable=resumable)
            for member in everybody.values()
        ]
        for worker, outcome in zip(everybody, await asyncio.gather(*ending, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException) and (worker in holding or not isinstance(outcome, IsthmusError)):
                raise outcome
