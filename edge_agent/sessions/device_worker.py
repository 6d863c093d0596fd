"""This device as a worker of its session: it answers the coordinator on its own threads and disk."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Self

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
from shared.checkpoint import CheckpointName, CheckpointStore
from shared.codec import FeedbackMode
from shared.errors import NotStoredError, StorageError
from shared.events import Emit
from shared.execution.blocks import Method
from shared.execution.recalled import begin_recall
from shared.placement import AGENT, PlacementPlan, held_blocks
from shared.runtime.checkpoint_states import PartFiles, load_block, load_states
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.placement_executor import Threads
from shared.training import block_state, state_file
from shared.training.held_state import KEPT, CopiedPart, changing_blocks, copy_part, put_back
from shared.training.losses import LossHead, check_labels
from shared.training.metrics import load_metrics
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class DeviceWorker:
    """This device's part in a session; see `WorkerCalls`. Made and used on the event loop."""

    name = AGENT

    @classmethod
    async def made(cls, state: SessionState, emit: Emit) -> Self:
        """Make one beside the event loop. It computes under the placement in force, from the first step on."""
        experiment, deployment = state.experiment, state.experiment.config.deployment
        chain, loss, folder = experiment.chain, experiment.recipe.loss, state.stored.recall_folder
        setup = WorkerSetup(
            cls.name,
            experiment.held,
            Method(
                LossHead(loss, None),
                deployment.backward,
                FeedbackMode(deployment.feedback),
                experiment.first_sample,
                load_metrics(experiment.recipe, None),
            ),
            Threads(state.threads.compute, state.threads.codec),
            lambda labels: check_labels(loss, chain.features[0], chain.outputs_beside(labels), labels),
            emit,
            state.step_log,
            begin_recall=None if folder is None else partial(begin_recall, chain, experiment.recipe, folder),
        )
        placed = await state.threads.compute.run(PlacedWorker, setup, state.plan, state.first_step)
        placed.start()
        return cls(state, placed)

    def __init__(self, state: SessionState, placed: PlacedWorker) -> None:
        """placed: the part that computes. See `made`."""
        self._state = state
        self._held = state.experiment.held
        self._arriving: dict[int, block_state.BlockTensors] = {}
        """States that have arrived for the next placement, by the block's index."""
        self.placed = placed

    async def join(self) -> WorkerPosition:
        """Tell as `WorkerCalls` says; the device has the coordinator's term already. Raises StorageError."""
        state, disk, store = self._state, self._state.threads.disk, self._store
        parts = frozenset(await disk.run(state.stored.checkpoints))
        replicas = {} if store is None else await disk.run(store.replicas)
        kept = {name: frozenset(blocks) for name, blocks in replicas.items()}
        is_whole = not self.placed.executor.has_failed
        return WorkerPosition(is_whole, state.lineage, state.placement.version, parts, kept)

    @property
    def may_be_repeated(self) -> bool:
        """Tell whether workers without a state may begin again: a step has begun, whose end shows that they have all."""
        window = self.placed.executor.window
        return window.begun > window.first

    @property
    def repeated_step(self) -> int:
        """Return the oldest step that a worker without a state may not have done; see `Window.repeated`."""
        return self.placed.executor.window.repeated

    def repeat(self, worker: str) -> None:
        """Wait for the steps that a worker does again; see `PlacementExecutor.repeat`."""
        self.placed.executor.repeat(worker)

    async def prepare(self, change: Change) -> None:
        """Prepare as `WorkerCalls` says: make room for the blocks. Raises ModelError if there is none."""
        await self._state.threads.compute.run(self._held.take_in, self._blocks_under(change.plan), self._arriving)

    async def give_up(self) -> None:
        """Forget the preparation and the blocks that arrived for it."""
        self._arriving = {}
        await self._state.threads.compute.run(self._held.let_go)

    async def commit(self, change: Change) -> Sequence[pb.Ticket]:
        """Commit as `WorkerCalls` says. The coordinator's own device commits last."""
        arriving, self._arriving = self._arriving, {}
        await self._state.threads.compute.run(self._held.hold, self._blocks_under(change.plan), arriving)
        await self.placed.place(change.plan, change.next_step)
        return ()

    async def restore(self, name: CheckpointName, plan: PlacementPlan) -> Sequence[pb.Ticket]:
        """Restore as `WorkerCalls` says. A damaged part is removed, so that an older one counts."""
        threads, store, blocks = self._state.threads, self._store, self._blocks_under(plan)
        assert store is not None, "without a folder there are no checkpoints"
        await self.placed.stop()  # Earlier work must no longer change the blocks.
        needed = set(blocks).intersection(changing_blocks(self._held.chain))
        if self._held.kept is not None:
            needed.add(KEPT)
        try:
            states = await threads.disk.run(load_states, store, name, needed)
            await threads.compute.run(put_back, self._held, blocks, states)
        except StorageError as failure:
            await threads.disk.run(self._state.stored.drop_damaged, name, failure)
            raise NotStoredError(f"checkpoint {name} is damaged on this device: {failure}") from failure
        await self.placed.go_back(plan, name.step)
        return ()

    def checkpoint(self, name: CheckpointName, facts: Mapping[str, Any]) -> CheckpointPart:
        """Begin a checkpoint as `WorkerCalls` says."""
        return _DevicesPart(self._state, name, facts)

    async def take_frozen(self, blocks: Collection[int]) -> None:
        """Have frozen parameters as `WorkerCalls` says: they are here from the beginning."""

    def give(self, receiver: WorkerCalls, transfer: Transfer) -> list[Call]:
        """List the calls as `WorkerCalls` says. No worker dials a device, so the device brings each block itself."""
        return [partial(self._bring, receiver, block, transfer) for block in transfer.weights_only]

    async def _bring(self, receiver: WorkerCalls, block: int, transfer: Transfer) -> None:
        threads, store, name = self._state.threads, self._store, transfer.checkpoint
        if name is None:
            state = await threads.compute.run(self._serialized, block, weights_only=transfer.weights_only[block])
        else:
            assert store is not None, "without a folder there are no checkpoints"
            state = await threads.disk.run(load_block, store, name, block)
        await receiver.take(block, state, name)

    def _serialized(self, index: int, *, weights_only: bool) -> bytes:
        self._held.check_frozen(index)
        tensors = self._held.block_tensors(index)
        return state_file.serialize(block_state.without_optimizer(tensors) if weights_only else tensors)

    def fetch(self, source: BlockSource, transfer: Transfer) -> list[Call]:
        """List the calls as `WorkerCalls` says: one for each block."""
        return [partial(self._fetch, source, block, transfer) for block in transfer.weights_only]

    async def _fetch(self, source: BlockSource, block: int, transfer: Transfer) -> None:
        weights_only, name = transfer.weights_only[block], transfer.checkpoint
        await self.take(block, await source.download(block, weights_only=weights_only, checkpoint=name), name)

    async def take(self, block: int, state: bytes | memoryview, checkpoint: CheckpointName | None) -> None:
        """Store a state as `WorkerCalls` says. Raises ProtocolError for a state that does not fit the block."""
        threads, store = self._state.threads, self._store
        of = self._held.chain.blocks[block]
        recipe = self._held.recipe
        tensors = await threads.compute.run(
            partial(block_state.from_file, of, recipe.optimizer_of_states, state, averaged=recipe.ema is not None)
        )
        if checkpoint is None:
            self._arriving[block] = tensors
            return
        assert store is not None, "without a folder there are no checkpoints"
        self._held.check_block(block, tensors)
        await threads.disk.run(store.save_replica, checkpoint, block, state)

    @property
    def _store(self) -> CheckpointStore | None:
        return self._state.stored.store

    def _blocks_under(self, plan: PlacementPlan) -> tuple[int, ...]:
        return tuple(held_blocks(plan.placement, self.name))


class _DevicesPart:
    """This device's part of a checkpoint; see `CheckpointPart`."""

    def __init__(self, state: SessionState, name: CheckpointName, facts: Mapping[str, Any]) -> None:
        self._state = state
        self._name = name
        self._facts = facts
        self._copying = asyncio.create_task(state.threads.compute.run(copy_part, state.experiment.held))

    async def copied(self) -> None:
        """Wait as `CheckpointPart` says."""
        await self._copying

    async def written(self) -> None:
        """Wait as `CheckpointPart` says."""
        await self._state.threads.disk.run(self._write, self._copying.result())

    def _write(self, copied: CopiedPart) -> None:
        store, shared = self._state.stored.store, self._state.stored.shared
        assert store is not None, "without a folder none is taken"
        PartFiles(copied, store).save(store, self._name, dict(self._facts))
        store.prune([] if shared is None else [shared])

    async def give_up(self) -> None:
        """Give up as `CheckpointPart` says."""
        self._copying.cancel()
