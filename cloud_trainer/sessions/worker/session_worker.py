"""The worker of this trainer in a session: its blocks, and its steps under the placement in force."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import grpc

from cloud_trainer.sessions.blocks import SessionBlocks
from cloud_trainer.sessions.worker.built_worker import BuiltWorker
from cloud_trainer.sessions.worker.figures import SessionFigures
from cloud_trainer.sessions.worker.judging import ActivePlacement
from shared.checkpoint import CheckpointName
from shared.events import Events, ignore
from shared.events.worker import StepComputed
from shared.execution.shared_blocks import BlockPart
from shared.execution.step_in_flight import Parcel
from shared.placement import Deployment, Placement, held_blocks, moves, ranges_of
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.placement_executor import PlacementExecutor, Threads
from shared.telemetry.metrics import TrainingMetrics
from shared.training.block_state import BlockTensors
from shared.training.held_state import changing_blocks, put_back
from shared.transport.rpc.status import StatusError


class SessionWorker:
    """A worker, from the opening of a session to its end. Used on the event loop, except for computations."""

    @classmethod
    async def made(
        cls,
        built: BuiltWorker,
        threads: Threads,
        metrics: TrainingMetrics,
        give: Callable[[Parcel], object] | None = None,
    ) -> Self:
        """Make a worker beside the event loop. It computes from then on. give: see `PlacementExecutor`."""
        judge = built.judge
        blocks = SessionBlocks(judge.worker, built.held, judge.memory)
        events = Events()
        figures = SessionFigures(judge.worker, metrics, events)
        events.subscribe(StepComputed, lambda _event: blocks.forget_arrived())
        setup = WorkerSetup(
            worker=judge.worker,
            held=built.held,
            method=built.method,
            threads=threads,
            check_labels=judge.check_labels,
            emit=events.emit,
            step_log=built.step_log,
            give=give,
            begin_recall=built.begin_recall,
        )
        placed = await threads.compute.aside(PlacedWorker, setup, built.active.plan)
        placed.start()
        return cls(placed, threads, blocks, built.active, figures)

    def __init__(
        self,
        placed: PlacedWorker,
        threads: Threads,
        blocks: SessionBlocks,
        active: ActivePlacement,
        figures: SessionFigures,
    ) -> None:
        """placed: the part that computes. active: the placement in force. figures: a reader of its events. See `made`."""
        self._placed = placed
        self._threads = threads
        self.blocks = blocks
        self.figures = figures
        self.lineage = 0
        """Session term in which it last went back to a checkpoint; 0 before the first time."""
        self.is_blank = False
        """True if it was rebuilt and lacks the state of its blocks."""
        self._put_into_force(active)

    @property
    def name(self) -> str:
        """Return the name of this trainer's worker."""
        return self.blocks.worker

    @property
    def placement(self) -> Placement:
        """Return the placement in force."""
        return self._active.placement

    @property
    def deployment(self) -> Deployment:
        """Return a summary of the placement in force; see `ActivePlacement`."""
        return self._active.deployment

    @property
    def executor(self) -> PlacementExecutor:
        """Return the steps of training."""
        return self._placed.executor

    @property
    def is_whole(self) -> bool:
        """Tell whether all the state that training needs is in memory."""
        return not (self.is_blank or self.executor.has_failed)

    @property
    def next_step(self) -> int:
        """Return the next step. All earlier steps are in the weights."""
        return self.executor.window.done

    @property
    def shown_blocks(self) -> str:
        """Return the blocks held here, as ranges for a person."""
        return ", ".join(map(str, ranges_of(self.blocks.held.indices))) or "none"

    @property
    def link_rates(self) -> dict[str, float | None]:
        """Return the measured bits per second of each training link, by the worker at its other end."""
        links = {peer: end.estimate for peer, end in self.executor.ends.items()}
        return {peer: None if link is None else link.rate.bits_per_second for peer, link in links.items()}

    @property
    def under_way(self) -> str:
        """Return the steps that have begun and not ended, for a sentence."""
        steps = self.executor.under_way
        return (
            f"step {', '.join(map(str, steps))}" if steps else "no step" if self.is_whole else "a step that has failed"
        )

    def dialers(self, evaluation: int) -> list[str]:
        """List the workers that dial this one, for an evaluation or for training (0)."""
        plan = self._placed.plan.evaluation if evaluation else self._placed.plan.training
        return [link.dialer for link in plan.links if link.listener == self.name]

    def updates(self, block: int) -> bool:
        """Tell whether a block is held and updated here."""
        return block in self.blocks.held.indices and self.placement.owner(block) == self.name

    def needed_of_checkpoint(self, placement: Placement) -> list[int]:
        """List the blocks whose states a checkpoint must have here before a judged placement comes into force with it."""
        changing = set(changing_blocks(self.blocks.held.chain))
        return [block for block in held_blocks(placement, self.name) if block in changing]

    def check_at(self, name: CheckpointName) -> None:
        """Refuse a checkpoint of another state than the present one. Raises StatusError."""
        is_here = name.lineage == self.lineage and self.executor.may_be_at(name.step)
        if not is_here or self.executor.under_way or not self.is_whole:
            at = CheckpointName(self.lineage, self.next_step)
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"checkpoint {name} is asked for; {self.name!r} is at {at}, with {self.under_way} under way",
            )
        self.executor.catch_up(name.step)

    def check_follows(self, placement: Placement, next_step: int, lineage: int) -> None:
        """Refuse a judged placement that cannot come into force at this step of this lineage. Raises StatusError."""
        before, executor = self.placement, self.executor
        arriving = [move.block for move in moves(before, placement) if move.receiver == self.name]
        missing = [block for block in arriving if self.blocks.lacks(block)]
        late = placement.version <= before.version or not executor.may_be_at(next_step)
        is_of_another = lineage != self.lineage and bool(held_blocks(before, self.name))
        if late or missing or is_of_another or executor.under_way or not self.is_whole:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"placement {placement.version} at {CheckpointName(lineage, next_step)} cannot follow placement "
                f"{before.version} at {CheckpointName(self.lineage, executor.window.done)}, with {self.under_way} under way"
                + (f" and without blocks {missing}" if missing else ""),
            )

    async def prepare(self, judged: ActivePlacement, next_step: int, lineage: int) -> None:
        """Make sure that a judged placement can come into force, with room for its blocks. Raises StatusError, and
        ModelError where there is no room."""
        self.check_follows(judged.placement, next_step, lineage)
        await self._threads.compute.aside(self.blocks.take_in, held_blocks(judged.placement, self.name))

    async def give_up(self) -> None:
        """Forget the preparation of another placement."""
        await self._threads.compute.aside(self.blocks.held.let_go)

    async def commit(self, judged: ActivePlacement, next_step: int, lineage: int) -> None:
        """Put a judged placement into force, whole or not at all, while no link is up.

        lineage: of all workers' state. Raises StatusError, and as `HeldBlocks.hold` does.
        """
        self.check_follows(judged.placement, next_step, lineage)
        await self._threads.compute.aside(self.blocks.hold, held_blocks(judged.placement, self.name))
        self.executor.catch_up(next_step)
        self.lineage = lineage
        await self._placed.place(judged.plan, next_step)
        self._put_into_force(judged)

    async def restore(
        self, step: int, states: Mapping[int, BlockTensors], judged: ActivePlacement, lineage: int
    ) -> None:
        """Continue from a checkpoint under a judged placement, which begins a new lineage, while no link is up.

        states: of the needed blocks (`needed_of_checkpoint`), before this step. Raises an IsthmusError if one does not
        fit. After that, the worker must not be used.
        """
        await self._placed.stop()
        await self._threads.compute.aside(put_back, self.blocks.held, held_blocks(judged.placement, self.name), states)
        self.blocks.forget_arrived()
        self.lineage, self.is_blank = lineage, False
        await self._placed.go_back(judged.plan, step)
        self._put_into_force(judged)

    async def begin_in_group(self, step: int, weights: Mapping[int, BlockPart]) -> None:
        """Begin at a step of a group, with the weights of that step, before any link is up."""
        await self._placed.stop()
        await self._threads.compute.aside(self._take_weights, weights)
        self.blocks.forget_arrived()
        await self._placed.go_back(self._placed.plan, step)

    def _take_weights(self, weights: Mapping[int, BlockPart]) -> None:
        for block, tensors in weights.items():
            self.blocks.held.take_weights(block, tensors)

    def check_has_no_state(self, judged: ActivePlacement) -> None:
        """Refuse to begin again with nothing where a judged placement has this worker own what changes. Raises StatusError."""
        if self.name not in judged.plan.training.stateless:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {self.name!r} cannot begin again with nothing: under placement {judged.placement.version} it owns "
                "blocks that change, or other workers report by it",
            )

    async def begin_again(self, step: int, judged: ActivePlacement, lineage: int, life: int) -> None:
        """Begin again with nothing at this step, of the lineage that all others have, while no link is up.

        life: session term in which it does. Raises an IsthmusError if there is no room for the blocks.
        """
        await self._placed.stop()
        await self._threads.compute.aside(self._drop_state, held_blocks(judged.placement, self.name))
        self.lineage, self.is_blank = lineage, False
        await self._placed.begin_again(judged.plan, step, life)
        self._put_into_force(judged)

    def _drop_state(self, blocks: Sequence[int]) -> None:
        """Hold these blocks, without what a step that failed half-way has left in them. Computes."""
        self.blocks.forget_arrived()
        self.blocks.held.hold(blocks, {})
        self.blocks.held.take_gradients(blocks)

    async def evaluation(self, batches: int) -> PlacementExecutor:
        """Return steps that evaluate with the present weights; see `PlacedWorker.evaluation`."""
        return await self._placed.evaluation(ignore, batches)

    async def stop(self) -> None:
        """Stop computing."""
        await self._placed.stop()

    def _put_into_force(self, judged: ActivePlacement) -> None:
        self.figures.placed(judged.placement)
        self.blocks.memory.uses = judged.uses
        self._active = judged
