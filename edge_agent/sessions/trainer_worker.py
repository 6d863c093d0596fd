"""A trainer as a worker of a session: the coordinator's requests, as calls over the network."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import structlog

from edge_agent.sessions.messages import abandon_at, check_limits, opening_request, placement_message
from edge_agent.sessions.session_state import SessionState
from edge_agent.sessions.worker_calls import (
    BlockSource,
    Call,
    Change,
    CheckpointPart,
    Transfer,
    WorkerCalls,
    WorkerPosition,
)
from shared.checkpoint import CheckpointName
from shared.checkpoint_wire import checkpoint_message, checkpoint_name
from shared.client.trainer import TrainerClient
from shared.codec import row_of_bytes
from shared.errors import ConfigError, FencedError, ProtocolError, UnreachableError
from shared.placement import Placement, PlacementPlan, held_blocks
from shared.tensor_wire import to_wire
from shared.training import block_state, state_file
from shared.transport.stream.framing import block_key, frozen_key
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


class TrainerWorker:
    """One trainer of a session; see `WorkerCalls`. Each call is made once. Used on the event loop."""

    def __init__(self, name: str, client: TrainerClient, session_id: str, state: SessionState) -> None:
        self.name = name
        self.client = client
        self.session_id = session_id
        """Id that the trainer has given the session. `reopen` changes it."""
        self.is_blank = False
        """True for a stand-in until it begins: it has the session, and nothing of the steps before."""
        self._state = state
        self._is_anothers = False
        """True if the trainer has said that another agent has the session."""
        self._other_frozen: set[int] = set()
        """Blocks whose frozen parameters may differ from ours at the trainer."""
        self.forget_blocks()

    async def join(self) -> WorkerPosition:
        """Join as `WorkerCalls` says, which ends links of older terms. Raises SessionLostError where the session is lost."""
        record, config = self._state.stored.record, self._state.experiment.config
        others = [name for name in record.trainer_sessions.values() if name not in ("", self.session_id)]
        try:
            answer = await self.client.join_session(
                self.session_id,
                self._state.stored.session_term,
                others if config.checkpoints.replicas == "store" else (),
            )
        except FencedError:
            self._is_anothers = True
            raise
        self._is_anothers = False
        return WorkerPosition(
            answer.whole,
            answer.lineage,
            answer.placement_version,
            frozenset(map(checkpoint_name, answer.checkpoints)),
            {checkpoint_name(kept.checkpoint): frozenset(kept.blocks) for kept in answer.replicas},
            answer.tickets,
        )

    async def open(self, most_seconds: float | None = None) -> WorkerPosition:
        """Open the session at a trainer that does not have it, and join it there.

        most_seconds: for the opening, where others wait for it; UnreachableError after that.

        Its id is on disk before it is joined: if the agent dies in between, it leaves a session without an agent,
        which the trainer soon drops. Raises StorageError, and ConfigError if its limits do not suffice.
        """
        state = self._state
        request = opening_request(state.experiment, self.name, state.placement)
        try:
            async with asyncio.timeout(most_seconds):
                answer = await self.client.open_session(request)
        except TimeoutError as late:
            raise UnreachableError(
                f"trainer {self.name!r} has not opened the session within {most_seconds:g} s"
            ) from late
        try:
            check_limits(state.experiment.config, self.name, answer)
        except ConfigError:
            await abandon_at(self.client, answer.session_id)
            raise
        await state.threads.disk.run(state.stored.set_trainer_session, self.name, answer.session_id)
        self.session_id = answer.session_id
        await self._compare_frozen(answer.frozen_digests)
        _log.info("session opened at one more trainer", trainer=self.name)
        return await self.join()

    async def prepare(self, change: Change) -> None:
        """Prepare as `WorkerCalls` says."""
        await self._commit(change, prepare=True)

    async def commit(self, change: Change) -> Sequence[pb.Ticket]:
        """Commit as `WorkerCalls` says."""
        return (await self._commit(change, prepare=False)).tickets

    async def _commit(self, change: Change, *, prepare: bool) -> pb.CommitPlacementResponse:
        request = pb.CommitPlacementRequest(
            session_id=self.session_id,
            fence=self._state.fence,
            next_step=change.next_step,
            placement=placement_message(change.plan.placement, self.name),
            prepare=prepare,
            lineage=self._state.lineage,
        )
        return await self.client.commit_placement(request)

    async def restore(self, name: CheckpointName, plan: PlacementPlan) -> Sequence[pb.Ticket]:
        """Restore as `WorkerCalls` says. Its frozen parameters are then equal to ours."""
        return await self._restore(plan, checkpoint=checkpoint_message(name))

    async def begin_again(self, step: int) -> Sequence[pb.Ticket]:
        """Have a worker without a state begin again with nothing at this step, under the placement in force.

        Its frozen parameters are then equal to ours, and others come from their owners. Returns its tickets.
        """
        return await self._restore(self._state.plan, beginning=pb.Beginning(step=step, lineage=self._state.lineage))

    async def _restore(
        self, plan: PlacementPlan, checkpoint: pb.CheckpointName | None = None, beginning: pb.Beginning | None = None
    ) -> Sequence[pb.Ticket]:
        answer = await self.client.restore_worker(
            pb.RestoreWorkerRequest(
                session_id=self.session_id,
                fence=self._state.fence,
                checkpoint=checkpoint,
                placement=placement_message(plan.placement, self.name),
                beginning=beginning,
            )
        )
        self._is_anothers = False
        await self._compare_frozen(answer.frozen_digests)
        await self.take_frozen(held_blocks(plan.placement, self.name))
        self.is_blank = False
        return answer.tickets

    async def begin_in_group(self, beginning: pb.Beginning) -> pb.RestoreWorkerResponse:
        """Have the session begin in the group of this device, as `TrainerService.RestoreWorker` says."""
        request = pb.RestoreWorkerRequest(session_id=self.session_id, fence=self._state.fence, beginning=beginning)
        return await self.client.restore_worker(request)

    async def leave_group(self, last_step: int, *, ends_group: bool) -> None:
        """Tell the last step of this device in its group, or with `ends_group` that of all."""
        fence = self._state.fence
        await self.client.leave_group(
            pb.LeaveGroupRequest(session_id=self.session_id, fence=fence, last_step=last_step, ends_group=ends_group)
        )

    async def join_group(self, life: int, first_step: int) -> None:
        """Have this device take part in its group from a step on, and wait until the group is there."""
        request = pb.JoinGroupRequest(
            session_id=self.session_id, fence=self._state.fence, life=life, first_step=first_step
        )
        await self.client.join_group(request)

    def checkpoint(self, name: CheckpointName, _facts: Mapping[str, Any]) -> CheckpointPart:
        """Begin a checkpoint as `WorkerCalls` says."""
        shared = self._state.stored.shared
        request = pb.CheckpointWorkerRequest(
            session_id=self.session_id,
            fence=self._state.fence,
            name=checkpoint_message(name),
            shared=None if shared is None else checkpoint_message(shared),
        )
        return _TrainersPart(self.name, self.client.checkpoint_worker(request))

    def evaluation(self, number: int, batches: int) -> AbstractAsyncContextManager[pb.JoinEvaluationResponse]:
        """Make the trainer take part in an evaluation while the body runs. batches: see `PlacedWorker.evaluation`."""
        request = pb.JoinEvaluationRequest(
            session_id=self.session_id, fence=self._state.fence, evaluation=number, batches=batches
        )
        return self.client.evaluation(request)

    async def dial(self, peers: Sequence[pb.Peer], evaluation: int) -> None:
        """Make the trainer dial others, for an evaluation or for training (0)."""
        await self.client.dial_peers(
            pb.DialPeersRequest(session_id=self.session_id, fence=self._state.fence, peers=peers, evaluation=evaluation)
        )

    async def remind(self) -> pb.GetSessionResponse:
        """Ask for the trainer's view of the session. The trainer then keeps the session longer."""
        return await self.client.get_session(self.session_id)

    async def end(self, *, resumable: bool) -> None:
        """End the session at the trainer, unless it was refused as another agent's: their terms may be equal."""
        if not self._is_anothers:
            await self.client.close_session(self.session_id, self._state.fence, resumable=resumable)

    def peer(self, ticket: str) -> pb.Peer:
        """Describe the trainer to another one that dials it."""
        return pb.Peer(worker=self.name, address=self.client.address, session_id=self.session_id, ticket=ticket)

    def give(self, receiver: WorkerCalls, transfer: Transfer) -> list[Call]:
        """List the calls as `WorkerCalls` says: the receiver dials the trainer."""
        return receiver.fetch(self, transfer)

    def fetch(self, source: BlockSource, transfer: Transfer) -> list[Call]:
        """List the calls as `WorkerCalls` says: one call, and no block passes this device."""
        return [partial(self._fetch, source, transfer)]

    async def _fetch(self, source: BlockSource, transfer: Transfer) -> None:
        request = pb.FetchBlocksRequest(
            session_id=self.session_id,
            fence=self._state.fence,
            peer=await source.offered(self.name, transfer),
            blocks=[pb.WantedBlock(block=block, weights_only=alone) for block, alone in transfer.weights_only.items()],
            checkpoint=None if transfer.checkpoint is None else checkpoint_message(transfer.checkpoint),
        )
        await self.client.fetch_blocks(request)

    async def offered(self, receiver: str, transfer: Transfer) -> pb.Peer:
        """Offer blocks as `BlockSource` says."""
        request = pb.OfferBlocksRequest(
            session_id=self.session_id,
            fence=self._state.fence,
            worker=receiver,
            blocks=list(transfer.weights_only),
            checkpoint=None if transfer.checkpoint is None else checkpoint_message(transfer.checkpoint),
        )
        return self.peer(await self.client.offer_blocks(request))

    async def download(self, block: int, *, weights_only: bool, checkpoint: CheckpointName | None = None) -> memoryview:
        """Download as `BlockSource` says."""
        experiment = self._state.experiment
        of, recipe = experiment.chain.blocks[block], experiment.recipe
        limit = block_state.max_serialized_bytes(of, recipe.optimizer_of_states, averaged=recipe.ema is not None)
        return await self.client.download_block(
            self.session_id, block, limit, weights_only=weights_only, checkpoint=checkpoint
        )

    async def take(self, block: int, state: bytes | memoryview, checkpoint: CheckpointName | None) -> None:
        """Store a state as `WorkerCalls` says."""
        await self._upload(block, state, self._state.placement, checkpoint)

    async def take_first_weights(self, answer: pb.OpenSessionResponse, placement: Placement) -> None:
        """Upload what the trainer's blocks have otherwise than ours by the digests with which it has opened a session.

        Raises ProtocolError for digests of another model.
        """
        blocks, compute = self._state.experiment.chain.blocks, self._state.threads.compute
        self._check_count(answer.block_digests)
        for index in held_blocks(placement, self.name):
            block = blocks[index]
            if await compute.run(block_state.digest, block) != answer.block_digests[index]:
                _log.info("the trainer starts from other weights; uploading ours", block=block.name, trainer=self.name)
                await self._upload(
                    index, await compute.run(state_file.serialize, block_state.collect(block, None)), placement
                )
        await self._compare_frozen(answer.frozen_digests)
        await self.take_frozen(held_blocks(placement, self.name))

    async def _compare_frozen(self, digests: Sequence[int]) -> None:
        """Find out which frozen parameters differ from ours. Raises ProtocolError for digests of another model."""
        blocks, compute = self._state.experiment.chain.blocks, self._state.threads.compute
        self._check_count(digests)
        self._other_frozen = {
            block.index
            for block, digest in zip(blocks, digests, strict=True)
            if await compute.run(block_state.frozen_digest, block) != digest
        }

    def _check_count(self, digests: Sequence[int]) -> None:
        if len(digests) != (count := len(self._state.experiment.chain.blocks)):
            raise ProtocolError(f"trainer {self.name!r} sent digests of {len(digests)} blocks; the model has {count}")

    def forget_blocks(self) -> None:
        """Forget what the trainer is known to have."""
        self._other_frozen = {block.index for block in self._state.experiment.chain.blocks if block_state.frozen(block)}

    async def take_frozen(self, blocks: Collection[int]) -> None:
        """Have frozen parameters as `WorkerCalls` says."""
        chain, placement = self._state.experiment.chain, self._state.placement
        for index in sorted(self._other_frozen.intersection(blocks)):
            block = chain.blocks[index]
            _log.info("the trainer has other frozen parameters; uploading ours", block=block.name, trainer=self.name)
            data = await self._state.threads.compute.run(state_file.serialize, block_state.frozen(block))
            tensor = to_wire(row_of_bytes(data), frozen_key(index), placement.version)
            await self.client.upload_block(self.session_id, tensor, self._state.fence)
            self._other_frozen.discard(index)

    async def _upload(
        self, block: int, state: bytes | memoryview, placement: Placement, checkpoint: CheckpointName | None = None
    ) -> None:
        tensor = to_wire(row_of_bytes(state), block_key(block), placement.version)
        await self.client.upload_block(self.session_id, tensor, self._state.fence, checkpoint)


class _TrainersPart:
    """A trainer's part of a checkpoint; see `CheckpointPart`."""

    def __init__(self, worker: str, answers: AsyncGenerator[bool | None]) -> None:
        """answers: of `TrainerClient.checkpoint_worker`."""
        self._worker = worker
        self._answers = answers

    async def copied(self) -> None:
        """Wait as `CheckpointPart` says."""
        if await anext(self._answers, None) is not None:
            raise ProtocolError(f"trainer {self._worker!r} did not say that it has copied its state")

    async def written(self) -> None:
        """Wait as `CheckpointPart` says."""
        try:
            if not await anext(self._answers, None):
                raise UnreachableError(f"trainer {self._worker!r} has not written its part; its log says why")
        finally:
            await self.give_up()

    async def give_up(self) -> None:
        """Give up as `CheckpointPart` says."""
        await self._answers.aclose()
