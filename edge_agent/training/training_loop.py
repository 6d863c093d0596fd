"""The steps of a run: over as many joins of its trainers, placements and checkpoints as necessary.

Between two stretches of steps nothing is in flight. Then the model is evaluated, a checkpoint taken, the placement
changed, or an operator awaited. Used on the event loop.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

import structlog
from torch import Tensor

from edge_agent.coordinator import Action, BoundaryReached, ChangeDone, GoodWeightsWanted, StepsDone, StopReached
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.group_member import begin_in_group
from edge_agent.sessions.links_between import dial_peers
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.best_weights import BestWeights
from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.deployer import Deployer
from edge_agent.training.divergence import LossCheck
from edge_agent.training.early_end import EarlyEnd
from edge_agent.training.evaluation import Evaluator
from edge_agent.training.events import (
    Activity,
    CheckpointShared,
    CheckpointTaken,
    CurrentActivity,
    Drained,
    Evaluated,
    Finishing,
    Placed,
    RolledBack,
)
from edge_agent.training.group_exit import GroupExit
from edge_agent.training.improvement import rate_drops
from edge_agent.training.links import Links
from edge_agent.training.member_upkeep import MemberUpkeep
from edge_agent.training.placement_change import tickets_in_force
from edge_agent.training.recovery import Rejoined, Restored, facts_of_placement
from edge_agent.training.rejoiner import Rejoiner
from edge_agent.training.relayed_trainers import RelayedTrainers
from edge_agent.training.statistics import Statistics
from edge_agent.training.step_aggregator import StepAggregator
from edge_agent.training.step_boundary import Pause
from edge_agent.training.step_runner import StepRunner
from edge_agent.training.stopping_trainers import StoppingTrainers
from shared.concurrency.tasks import meanwhile, run_unless_failed
from shared.errors import IsthmusError
from shared.events import Events
from shared.events.worker import WorkerStops

_log = structlog.get_logger(__name__)


class TrainingLoop:
    """The training in one session. Made and used on the event loop; `close` ends it."""

    @classmethod
    async def made(cls, session: OpenSession, pause: Pause, of_run: Events, statistics: Statistics) -> "TrainingLoop":
        """Make one, and this device's worker for it beside the event loop.

        of_run: its events. pause: an operator's; it knows the shutdown and the step boundary too. statistics: the figures that
        checkpoints store.
        """
        on_nan = session.experiment.config.training.on_nan
        events = Events(of_run)
        device = await DeviceWorker.made(session.state, events.emit)
        loss_scale = session.experiment.held.loss_scale
        aggregator = StepAggregator(events, device.placed, LossCheck(on_nan, loss_scale).check, loss_scale)
        return cls(session, device, aggregator, pause, events, statistics)

    def __init__(
        self,
        session: OpenSession,
        device: DeviceWorker,
        aggregator: StepAggregator,
        pause: Pause,
        events: Events,
        statistics: Statistics,
    ) -> None:
        """device: this device's worker, of whose reports `aggregator` reads. events: of this loop. See `made`."""
        emit = events.emit
        experiment, config, boundary = session.experiment, session.experiment.config, pause.boundary
        self._session = session
        self._experiment = experiment
        self._pause = pause
        self._boundary = boundary
        self._emit = emit
        self._statistics = statistics
        self._activity = CurrentActivity(session.coordinator, emit)
        self._worker = device.placed
        self.checkpointer = Checkpointer(config.checkpoints, session, device, boundary, emit)
        self._changed_step: int | None = None
        """Step of the last attempt to change the placement. Until it is done, no other change stops the run again."""
        membership_due = asyncio.Event()
        self.deployer = Deployer(session, device, boundary, emit, self._may_change, membership_due)
        keeps = self.checkpointer.keeps
        self._stopping_trainers = StoppingTrainers(session, self.deployer, boundary, membership_due)
        events.subscribe(WorkerStops, self._stopping_trainers.note)
        self._member_upkeep = MemberUpkeep(
            session, self.deployer, self._stopping_trainers, membership_due, keeps_checkpoints=keeps
        )
        events.subscribe(CheckpointShared, self._member_upkeep.note_shared)
        self._relayed = RelayedTrainers(session, self.deployer, events)
        self._evaluator = Evaluator(session)
        self._best = BestWeights(session, statistics)
        self._aggregator = aggregator
        self.step_runner = StepRunner(session, self._worker, self._aggregator, boundary)
        self._rejoiner = Rejoiner(
            session,
            device,
            self.deployer,
            emit,
            lambda: self.step,
            lambda: self._pause.requested,
            lambda: statistics.step_time.recent,
        )
        self._evaluated_step = 0
        """Next step at the time of the last evaluation."""
        self._resumes = False
        """True if the next checkpoint to restore is an earlier process's."""
        self._is_unseated = config.member is not None
        """True for a member of a group until it has begun in that."""
        self._exit = GroupExit(session, pause)
        self._early_end = EarlyEnd(session, pause, self._exit, statistics, emit)
        self._links: Links | None = None
        self.averages: Mapping[str, Tensor] = {}
        """Averages of the weights that were brought home, by the names of their parameters; none without training.ema."""

    @property
    def step(self) -> int:
        """Return the first step that some worker has not done."""
        return self._aggregator.done_step

    @property
    def attached(self) -> bool:
        """Tell whether every link to a trainer is up."""
        return self._links is not None and self._links.attached

    async def train(self, *, resumed: bool) -> None:
        """Do all steps, and bring the weights home. resumed: this process has no state except the checkpoints.

        Returns early, after a last checkpoint, if the run is to stop. Raises an IsthmusError that cannot be mended.
        """
        self._resumes = resumed
        self.checkpointer.count_from(0)
        async with self._session.keep_alive(), meanwhile(self._relayed.keep()):
            action = Action.JOIN
            while action is not Action.FINISH:
                action = await self._train()

    async def _train(self) -> Action:
        """Join the trainers, and do steps until they have to be joined again, or training is over. Returns which."""
        tell = self._session.coordinator.tell
        joined = await self._rejoiner.join()
        try:
            action = await self._rejoiner.liveness.watch_over(self._go_on(joined))
        except IsthmusError as failure:
            await self._rejoiner.mend(failure)
            return Action.JOIN
        match action:
            case Action.FETCH:
                return tell(StepsDone())
            case Action.CHECKPOINT:
                return tell(StopReached(self._pause.shutdown.requested))
            case _:  # what the trainers are joined for has been told where it was noticed
                return Action.JOIN

    async def go_back(self) -> None:
        """Go back to the newest checkpoint of all workers, and bring the weights of that step home."""
        self._session.coordinator.tell(GoodWeightsWanted())
        joined = await self._rejoiner.join()
        assert isinstance(joined, Restored), "nothing goes on from a state that is not whole"
        await self._restart(joined)
        await self._collect()

    async def _collect(self) -> None:
        self.averages = await self._session.collect(averaged=self._experiment.recipe.ema is not None)

    async def close(self) -> None:
        """Stop computing, changing the placement and taking checkpoints."""
        self.deployer.want_nothing("the run ended before")
        await self.checkpointer.stop()
        await self._worker.stop()

    async def _go_on(self, joined: Rejoined | Restored) -> Action:
        """Do the remaining steps, under one placement after the other, and bring the weights home. Returns the last answer at a
        boundary: CHANGE where the other placement could not come into force."""
        while True:
            if self._is_unseated:
                with self._activity.during(Activity.JOINING):
                    done = self._statistics.steps
                    step = await begin_in_group(self._session, self._worker, has_trained=done > 0)
                statistics = self._statistics
                totals = statistics.totals() if done == step else statistics.totals_at(step, statistics.history)
                facts = {"totals": totals}
                joined, self._is_unseated = Restored(joined.tickets, step, facts, is_replanned=False), False
            if isinstance(joined, Restored):
                await self._restart(joined)
                if joined.step == self._experiment.steps:  # another member has ended the group, maybe between two rows
                    self._emit(Finishing())
            await self._session.retry.run(partial(dial_peers, self._session, joined.tickets))
            links = Links(self._session, self._worker.executor, self._emit)
            async with links as self._links, meanwhile(self._member_upkeep.keep()):
                plan = self._session.state.plan
                self._emit(Placed(plan.placement, plan.training.links, self.deployer.deployment_in_force))
                action = await self._do_steps(self._links)
            if action is Action.FETCH:
                with self._activity.during(Activity.FINISHING):
                    await self._collect()
            if action is not Action.CHANGE or (changed := await self._change_placement()) is None:
                return action
            joined = changed

    def _may_change(self) -> bool:
        """Tell whether the placement may change at a boundary. Each lasts for a step at least, except during a pause."""
        return self._pause.requested or self.step != self._changed_step

    async def _change_placement(self) -> Rejoined | None:
        """Put the requested placement into force. Returns None where it could not come into force: joining the trainers tells
        what they have of it."""
        self._changed_step = self.step
        self.deployer.follow_schedules(self.step)  # whatever was requested since the boundary
        if not self.deployer.is_ready:  # it was taken back since, and no trainer has heard of it
            in_force = await self._session.retry.run(partial(tickets_in_force, self._session, self.step))
            self._session.coordinator.tell(ChangeDone())
            return Rejoined(in_force)
        if (tickets := await self.deployer.change_now(self.step)) is None:
            return None
        self._aggregator.begin_again()
        self.checkpointer.ask_here()  # going back then never moves blocks back
        return Rejoined(tickets)

    async def _do_steps(self, linked: Links) -> Action:
        """Do steps under the placement in force. Returns the answer at the boundary where they end."""
        async with self.step_runner.batches_from(self._worker.executor.window.fed, self._experiment.steps) as batches:
            # Finish the batches that a lost link has left.
            taken = self._worker.executor.window.fed
            await self.step_runner.do(linked, batches, self._experiment.recipe.boundary_from(taken))
            while True:
                await self._evaluate_if_due()
                await self._early_end.end_if_no_better(self.step)
                if self._best.is_due(self.step):
                    await self._keep_best()
                action = await self._at_boundary()
                if action is Action.PAUSE:
                    action = await self._stay_paused(linked)
                if action is not Action.TRAIN:
                    return action
                self._lower_rate_if_due()
                if self._experiment.config.member is not None:
                    # No checkpoint has a member's rows, so its file has them before its next step.
                    await self._session.threads.disk.run(lambda: None)
                await self.step_runner.do(linked, batches, self._next_stop_step())
                self._emit(Drained())

    def _next_stop_step(self) -> int:
        """Return the latest end of the next stretch. It is not each epoch's end: draining takes time."""
        step, ends, boundary_from = self.step, [self._experiment.steps], self._experiment.recipe.boundary_from
        is_end_requested = self._exit.is_asked or self._boundary.is_end_requested
        if is_end_requested or (step == self._changed_step and self.deployer.is_ready):
            return boundary_from(step + 1)  # the end, or another change, waits for it
        ends += [(step // every + 1) * every for every in self._experiment.evaluation_every if every]
        ends += [position for position in self._experiment.scheduled_steps if position > step][:1]
        return boundary_from(self.checkpointer.next_stop_step(step, min(ends)))

    async def _at_boundary(self) -> Action:
        """Do the work that waited for a moment with nothing in flight. Returns what follows."""
        if await self._early_end.end_if_asked(self.step):
            await self._evaluate_if_due()
        is_end = self.step == self._experiment.steps
        if not is_end:
            self._boundary.clear_request()  # later requests may need another boundary
        is_leaving = not is_end and await self._exit.has_a_step_left(self.step)
        if not (is_end or is_leaving or self._must_stop):
            if self.checkpointer.due(self.step):
                await self._checkpoint()
            self.deployer.follow_schedules(self.step)
        told = BoundaryReached(is_end, is_leaving, self._must_stop, self.deployer.is_due, self._pause.requested)
        action = self._session.coordinator.tell(told)
        # A trainer that is about to stop may be gone before its blocks have come home, or its successor has refused them.
        may_lose_blocks = action in (Action.FETCH, Action.CHANGE) and self._stopping_trainers.may_be_gone
        if action is Action.CHECKPOINT:
            self._stopping_trainers.must_stop = False
        is_kept = action is Action.FETCH and self._experiment.config.checkpoints.keep_finished
        if action is Action.CHECKPOINT or may_lose_blocks or is_kept:
            await self._take_last_checkpoint()
        return action

    @property
    def _must_stop(self) -> bool:
        return self._pause.shutdown.requested or self._stopping_trainers.must_stop

    async def _evaluate_if_due(self) -> None:
        experiment, step = self._experiment, self.step
        if experiment.evaluation is None or step == self._evaluated_step or not experiment.evaluates_at(step):
            return
        evaluate = partial(self._evaluator.evaluate, self._worker, experiment.evaluation)
        with self._activity.during(Activity.EVALUATING):
            found = await self._boundary.do_unless(evaluate(), lambda: self._must_stop and self.checkpointer.keeps)
            if found is None and step != experiment.steps:
                return  # A stop leaves no time for it; who goes on from the last checkpoint evaluates here.
            if found is None:
                await self._take_last_checkpoint()
                found = await evaluate()
        self._emit(Evaluated(step, found.accuracy, found.loss, found.metrics))
        shown = {"metrics": dict(found.metrics)} if found.metrics else {}
        epoch = experiment.recipe.epoch_of(step)
        _log.info("evaluated", epoch=epoch, loss=round(found.loss, 4), accuracy=found.accuracy, **shown)
        self._evaluated_step = step

    def _lower_rate_if_due(self) -> None:
        """Have the next steps tell what the evaluations say of the learning rate. Nothing is in flight."""
        held, before = self._experiment.held, self._experiment.held.rate_drops
        # In a group, those of another member may say more, or the rows of this one be lost.
        held.rate_drops = max(before, rate_drops(self._statistics.history, self._experiment.recipe.schedule))
        if held.rate_drops > before:
            _log.info("the evaluations get no better; the learning rate falls", step=self.step)

    async def _keep_best(self) -> None:
        with self._activity.during(Activity.EVALUATING):
            await self._best.keep(self.step)

    async def _stay_paused(self, linked: Links) -> Action:
        """Stand still until something else follows. Work for a boundary is done meanwhile. See `_at_boundary`."""
        _log.info("standing still")
        action = Action.PAUSE
        with self._activity.during(Activity.PAUSED), self._pause.standing_still():
            while action is Action.PAUSE:
                await run_unless_failed(self._pause.wait(), self._worker.executor.failure, linked.failure)
                action = await self._at_boundary()
        if action is Action.TRAIN:
            _log.info("going on")
        return action

    async def _checkpoint(self) -> None:
        started = time.monotonic()
        facts = {
            "evaluated_step": self._evaluated_step,
            "totals": self._statistics.totals(),
            **facts_of_placement(self._session.placement),
        }
        if (loss_scale := self._experiment.held.loss_scale) is not None:
            facts["loss_scale"] = loss_scale.facts()
        if (state := self._experiment.loader.state_before(self.step)) is not None:
            facts["data"] = state
        await self.checkpointer.take(self.step, facts)
        self._emit(CheckpointTaken(time.monotonic() - started))

    async def _take_last_checkpoint(self) -> None:
        """Take a checkpoint at this step, if every worker can write it, and wait until it is written."""
        try:
            await self.checkpointer.wait_until_written()
            self.checkpointer.ask_here()
            if self.checkpointer.due(self.step):
                await self._checkpoint()
                await self.checkpointer.wait_until_written()
        except IsthmusError as failure:
            _log.warning("no last checkpoint", step=self.step, reason=str(failure))

    async def _restart(self, restored: Restored) -> None:
        """Continue from the checkpoint that all workers have restored."""
        self._aggregator.begin_again()
        if (loss_scale := self._experiment.held.loss_scale) is not None:
            loss_scale.go_back(restored.step, restored.facts.get("loss_scale"))
        self._experiment.loader.read_by(restored.step, restored.facts.get("data"))
        self.checkpointer.count_from(restored.step)
        if restored.is_replanned:
            self.checkpointer.ask()  # going back then never moves blocks once more
        self._evaluated_step = restored.facts.get("evaluated_step", 0)
        totals = restored.facts.get("totals", {})
        if self._resumes:
            self._statistics.go_on(totals)
            self._early_end.take_back()
        else:
            self._statistics.go_back(totals)
        self._resumes = False
        self._experiment.held.rate_drops = 0
        self._early_end.begin_at(restored.step)
        await self._best.go_back(restored.step)
        self._emit(RolledBack(restored.step))
        self._lower_rate_if_due()  # the row of an evaluation here tells the rate of the step before
