"""One worker of a session, over all placements that it comes under."""

from collections.abc import Callable
from typing import NamedTuple

import structlog

from shared.events import Emit
from shared.execution.blocks import Method, PlacedBlocks
from shared.execution.recalled import Recalled
from shared.execution.residuals import Residuals
from shared.execution.step_in_flight import Parcel
from shared.model.spec import TensorSpec
from shared.placement import Placement, PlacementPlan, StepPlan, Window
from shared.runtime.forms import Forms
from shared.runtime.placement_executor import PlacementExecutor, Threads
from shared.training.held_blocks import HeldBlocks
from shared.training.metrics import Metrics, Tally
from shared.training.step_log import StepLog

_log = structlog.get_logger(__name__)


class WorkerSetup(NamedTuple):
    """The parts of a worker that do not depend on the placement."""

    worker: str
    held: HeldBlocks
    method: Method
    threads: Threads
    check_labels: Callable[[TensorSpec], None]
    """Refuses labels that come by a link and that the loss cannot take. Raises an IsthmusError."""
    emit: Emit
    step_log: StepLog | None = None
    give: Callable[[Parcel], object] | None = None
    """See `PlacementExecutor`."""
    begin_recall: Callable[[StepPlan], Recalled] | None = None
    """Begins to keep features anew; None where there is no folder for them."""


class PlacedWorker:
    """The steps of one worker under the placement in force. Used on the event loop.

    The caller must move the blocks before `place`.
    """

    def __init__(self, setup: WorkerSetup, plan: PlacementPlan, first_step: int = 0) -> None:
        """Made on any thread, with work that grows with the placement; `start` comes next."""
        self._setup = setup
        self._plan = plan
        self._residuals = Residuals()
        if setup.held.kept is not None:
            setup.held.kept.put_back({})  # another worker of the session may be new
        self.executor = self._made(plan.training, setup.emit, first_step)
        """The steps of training."""

    @property
    def placement(self) -> Placement:
        """The placement in force."""
        return self._plan.placement

    @property
    def plan(self) -> PlacementPlan:
        """The placement in force, with all that follows from it."""
        return self._plan

    @property
    def metrics(self) -> Metrics | None:
        """The metrics of evaluations; None where there are none."""
        return self._setup.method.metrics

    def start(self) -> None:
        """Begin to compute. Called once, on the event loop."""
        self.executor.start()

    async def place(self, plan: PlacementPlan, first_step: int, life: int = 0) -> None:
        """Continue under another placement from this step on. Work under way is dropped. life: see `Window`."""
        await self.executor.stop()
        compute, emit = self._setup.threads.compute, self._setup.emit
        self.executor = await compute.aside(self._made, plan.training, emit, first_step, life)
        self._plan = plan
        self.executor.start()

    async def go_back(self, plan: PlacementPlan, first_step: int) -> None:
        """Go on from a checkpoint, under the placement with which it was restored."""
        if self._setup.step_log is not None:
            self._setup.step_log.rolled_back(first_step)
        self._residuals = Residuals()  # of gradients that are no more
        await self.place(plan, first_step)

    async def begin_again(self, plan: PlacementPlan, first_step: int, life: int) -> None:
        """Go on with nothing, as a worker without a state, under the placement in force; see `Window`.

        Weights that change come from their owners.
        """
        if self._setup.step_log is not None:
            self._setup.step_log.rolled_back(first_step)
        await self.place(plan, first_step, life)

    async def stop(self) -> None:
        """Compute no more."""
        await self.executor.stop()

    async def evaluation(self, emit: Emit, batches: int = 0) -> PlacementExecutor:
        """Return steps that evaluate batches from 0 on with the present weights. The caller has to stop them.

        batches: their number, after which metrics are told; 0 where none are. Raises ModelError where one cannot be made.
        """
        executor = await self._setup.threads.compute.aside(self._made_to_judge, emit, batches)
        executor.start()
        return executor

    def _made_to_judge(self, emit: Emit, batches: int) -> PlacementExecutor:
        tally = self.metrics.tally(batches) if self.metrics is not None and batches else None
        return self._made(self._plan.evaluation, emit, 0, tally=tally)

    def _made(
        self, plan: StepPlan, emit: Emit, first_step: int, life: int = 0, tally: Tally | None = None
    ) -> PlacementExecutor:
        setup = self._setup
        begins = setup.begin_recall if plan.recalls_at(setup.worker) else None
        recalled = None if begins is None else begins(plan)
        if recalled is not None:
            _log.info("features are kept from this step on", step=first_step, most_bytes=recalled.bytes)
        blocks = PlacedBlocks(setup.held, plan, setup.worker, setup.method, recalled, tally)
        held = setup.held
        forms = Forms(
            plan.placement,
            held.chain,
            setup.check_labels,
            held.recipe,
            self._residuals,
            merged=plan.model.merged,
            recalls=plan.recalls,
            kept=held.kept if plan.sends_changes else None,
        )
        step_log = setup.step_log if plan.training else None
        window = Window(plan, setup.worker, first_step, life)
        return PlacementExecutor(window, forms, blocks, setup.threads, emit, step_log, setup.give)
