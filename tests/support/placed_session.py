"""A session in virtual time that goes from one placement to the next, and evaluates in between: `PlacedWorker`s over links."""

import copy
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from torch import nn

from shared.concurrency.threads import Runner
from shared.events.worker import Computed, LoadEncoded
from shared.execution.blocks import Method
from shared.execution.in_process_session import Turn
from shared.execution.model_facts import facts_of
from shared.execution.step_in_flight import Parcel
from shared.placement import Placement, PlacementPlan, first_worker, held_blocks, moves
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.placement_executor import PlacementExecutor, Threads
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import BatchLoss, whole_loss
from shared.training.recipe import Recipe
from shared.training.step_log import StepLog
from tests.support.linked import Batches, Heard, drive, feed
from tests.support.linking import Linking, Seconds
from tests.support.placed import CPU, chain_of, method
from tests.support.virtual import InlineWorker


class PlacedSession:
    """All workers on one loop. Every placement names the same ones. Made on the loop; `stop` ends it."""

    def __init__(
        self,
        module: nn.Module,
        placement: Placement,
        told: Recipe,
        how: Method | None = None,
        seconds: Seconds = lambda: 0.0,
        losses: Sequence[int] = (),
        step_log: Callable[[str], StepLog | None] = lambda _worker: None,
        give: Callable[[Parcel], object] | None = None,
    ) -> None:
        """seconds: before and after each call, and before each packet. losses: see `Linking`. step_log: of each worker.

        give: see `PlacementExecutor`.
        """
        self.chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
        self.placement = placement
        self.next_step = 0
        self.turns: list[Turn] = []
        """Turns that were computed since the last change, in their order."""
        self._linking = Linking(seconds, losses)
        self.heard = {worker: _Noting(worker, self.turns) for worker in placement.workers}
        self._model = facts_of(next(iter(self.chains.values())), told, merged=give is not None)
        self._plan = PlacementPlan.of(placement, self._model)
        self._held = {
            worker: HeldBlocks(chain, told, CPU, held_blocks(placement, worker))
            for worker, chain in self.chains.items()
        }
        threads: dict[str, Runner] = {worker: InlineWorker(seconds) for worker in placement.workers}
        self.workers = {
            worker: PlacedWorker(
                WorkerSetup(
                    worker,
                    held,
                    how or method(),
                    Threads(threads[worker], InlineWorker(seconds)),
                    lambda _labels: None,
                    self.heard[worker].emit,
                    step_log(worker),
                    give,
                ),
                self._plan,
            )
            for worker, held in self._held.items()
        }
        for placed in self.workers.values():
            placed.start()

    @property
    def executors(self) -> dict[str, PlacementExecutor]:
        """The steps of training, by worker."""
        return {name: worker.executor for name, worker in self.workers.items()}

    async def train(self, batches: Batches) -> None:
        """So many steps more, until every worker has done them."""
        steps = range(self.next_step, self.next_step + len(batches))
        for executor in self.executors.values():
            feed(executor, self.placement, steps.start, batches)
        await drive(
            self.executors,
            self.keep_linked(),
            self.heard[first_worker(self.placement)].all_done(steps, self._busy(training=True)),
        )
        self.next_step = steps.stop

    def keep_linked(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that keep the links of training up, for as long as they are awaited."""
        return self._linking.keep_all(self.executors, self._plan.training.links)

    async def change(self, placement: Placement) -> None:
        """Go on under another placement; blocks move as they are. Nothing is in flight."""
        plan = PlacementPlan.of(placement, self._model)
        arriving: dict[str, dict[int, block_state.BlockTensors]] = {name: {} for name in self.workers}
        for block, sender, receiver, whole in moves(self.placement, placement):
            state = {name: tensor.clone() for name, tensor in self._held[sender].block_tensors(block).items()}
            arriving[receiver][block] = state if whole else block_state.without_optimizer(state)
        for name, worker in self.workers.items():
            self._held[name].hold(held_blocks(placement, name), arriving[name])
            await worker.place(plan, self.next_step)
        self.placement, self._plan = placement, plan
        self.turns.clear()

    async def evaluate(self, batches: Batches) -> list[BatchLoss]:
        """The loss of each batch."""
        heard = {name: _Evaluating(self) for name in self.workers}
        executors = {name: await worker.evaluation(heard[name].emit) for name, worker in self.workers.items()}
        self.evaluations = executors
        first = heard[first_worker(self.placement)]
        for executor in executors.values():
            feed(executor, self.placement, 0, batches)
        try:
            await drive(
                executors,
                self._linking.keep_all(executors, self._plan.evaluation.links),
                first.all_done(range(len(batches)), self._busy(training=False)),
            )
        finally:
            for executor in executors.values():
                await executor.stop()
        return [_loss_of(first, step) for step in range(len(batches))]

    async def stop(self) -> None:
        """Compute no more."""
        for worker in self.workers.values():
            await worker.stop()

    def most_under_way(self) -> int:
        """Batches of the evaluation that have begun anywhere and are not done everywhere."""
        begun = max((step for executor in self.evaluations.values() for step in executor.under_way), default=-1)
        busy = [executor for name, executor in self.evaluations.items() if self._does(name, training=False)]
        return begun + 1 - min(executor.window.done for executor in busy)

    def may_be_under_way(self) -> int:
        """The most batches of an evaluation that may be."""
        return self._plan.evaluation.ahead + 1

    def _busy(self, *, training: bool) -> int:
        return sum(self._does(name, training=training) for name in self.workers)

    def _does(self, worker: str, *, training: bool) -> bool:
        return bool((self._plan.training if training else self._plan.evaluation).program(worker))


class _Noting(Heard):
    """Notes the order in which all workers compute."""

    def __init__(self, worker: str, turns: list[Turn]) -> None:
        super().__init__()
        self.subscribe(Computed, lambda event: turns.append(Turn(worker, event.step, event.segment)))


class _Evaluating(Heard):
    """Sees to it that no more batches are under way than may be."""

    def __init__(self, session: PlacedSession) -> None:
        super().__init__()
        self._session = session
        self.subscribe(Computed, lambda _event: self._check())
        self.subscribe(LoadEncoded, lambda _event: self._check())

    def _check(self) -> None:
        assert self._session.most_under_way() <= self._session.may_be_under_way()


def _loss_of(heard: Heard, step: int) -> BatchLoss:
    done = sorted((one for one in heard.done[step] if one.samples), key=lambda one: one.worker)
    return whole_loss(
        [BatchLoss(one.loss, one.correct if one.HasField("correct") else None, one.samples) for one in done]
    )
