"""One worker of a session, over all placements that it comes under."""

from collections.abc import Callable
from typing import NamedTuple

from shared.execution.blocks import Method, PlacedBlocks
from shared.execution.model_facts import facts_of
from shared.model.spec import TensorSpec
from shared.placement import Placement
from shared.runtime.crossing_wire import CrossingWire
from shared.runtime.worker_listener import WorkerListener
from shared.runtime.worker_run import Threads, WorkerRun
from shared.training.held_blocks import HeldBlocks
from shared.training.step_log import StepLog


class WorkerSetup(NamedTuple):
    """What a worker has whatever the placement."""

    worker: str
    held: HeldBlocks
    method: Method
    threads: Threads
    check_labels: Callable[[TensorSpec], None]
    """Refuses labels that come by a link and that the loss cannot take. Raises an IsthmusError."""
    listener: WorkerListener
    step_log: StepLog | None = None


class PlacedWorker:
    """The steps of one worker under the placement in force. Used on the event loop.

    Who holds it moves the blocks: when `place` is called, the blocks of the placement are held.
    """

    def __init__(self, setup: WorkerSetup, placement: Placement, first_step: int = 0) -> None:
        """Made on the event loop; it computes at once."""
        self._setup = setup
        self._model = facts_of(setup.held.chain)
        self.placement = placement
        self.run = self._begin(first_step, training=True)
        """The steps of training."""

    async def place(self, placement: Placement, first_step: int) -> None:
        """Go on under another placement from this step on. What was under way is dropped."""
        await self.run.stop()
        self.placement = placement
        self.run = self._begin(first_step, training=True)

    async def stop(self) -> None:
        """Compute no more."""
        await self.run.stop()

    def evaluation(self, listener: WorkerListener) -> WorkerRun:
        """Steps that evaluate batches from 0 on with the weights of now; who asks has to stop them."""
        return self._begin(0, training=False, listener=listener)

    def _begin(self, first_step: int, *, training: bool, listener: WorkerListener | None = None) -> WorkerRun:
        setup, placement = self._setup, self.placement
        blocks = PlacedBlocks(setup.held, placement, self._model, setup.worker, setup.method)
        wire = CrossingWire(placement, setup.held.chain, setup.held.recipe.optimizer, setup.check_labels)
        step_log = setup.step_log if training else None
        run = WorkerRun(
            wire,
            self._model,
            blocks,
            setup.threads,
            listener or setup.listener,
            first_step,
            step_log,
            training=training,
        )
        run.start()
        return run
