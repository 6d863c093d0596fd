"""The attempts at one run: one session, and another from the start where nothing was on both sides when the first was lost."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import NamedTuple

import structlog

from edge_agent.adaptation.candidates.choice import TrainerChoice, make_choice
from edge_agent.adaptation.decisions import DecisionLoop, make_decision_loop
from edge_agent.adaptation.rescheduling import Rescheduling
from edge_agent.callbacks.run_callbacks import RunCallbacks
from edge_agent.config import EdgeConfig
from edge_agent.control.control_state import ControlState
from edge_agent.coordinator import Action, SessionBegun, SessionGone
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.candidates import policy_of
from edge_agent.experiment.experiment import Experiment
from edge_agent.observability.metrics import EdgeMetrics
from edge_agent.planner_names import EDGEMOVE
from edge_agent.planning import Profile
from edge_agent.profiling.timers import timer_meanwhile
from edge_agent.sessions.how_to_go_on import going_on
from edge_agent.sessions.kills import Kill
from edge_agent.sessions.opening import open_when_there, resume_session
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.training.events import BeganAgain, Ended, SessionOpened
from edge_agent.training.result import TrainingResult
from edge_agent.training.training_loop import TrainingLoop
from edge_agent.training.training_run import TrainingRun
from shared.checkpoint import LocalFiles
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import ClosedError, GoneError
from shared.events import Events
from shared.placement import AGENT, Placement

_log = structlog.get_logger(__name__)


class Preparation(NamedTuple):
    """The preparation of a run, before the trainer is asked."""

    config: EdgeConfig
    experiment: Experiment
    profile: Profile | None
    first: Placement
    """Placement that a new session begins with."""
    folder: LocalFiles | None
    """Folder in which this agent keeps its sessions."""
    stored: StoredSession | None
    """The session to go on with."""
    callbacks: RunCallbacks
    killed: Kill | None = None
    """Kill of the last process of that session; None where it ended by itself."""


class Newest:
    """The session that a run has now, or had last."""

    def __init__(self, stored: StoredSession | None) -> None:
        self.stored = stored


class Attempts:
    """The attempts of one agent, made one after the other."""

    def __init__(
        self,
        control_state: ControlState,
        events: Events,
        metrics: EdgeMetrics,
        threads: AgentThreads,
        clients: Mapping[str, TrainerClient],
        write_result: Callable[[TrainingResult], object],
        again: Rescheduling | None,
    ) -> None:
        """clients: of the trainers of the experiment, by name. again: makes a member's schedule again."""
        self._control_state = control_state
        self._events = events
        self._metrics = metrics
        self._threads = threads
        self._clients = clients
        self._write_result = write_result
        self._again = again

    async def train(self, prepared: Preparation, newest: Newest) -> TrainingResult:
        """Train in one session after the other, until one comes to its end. Raises IsthmusError."""
        experiment, stored, statistics = prepared.experiment, prepared.stored, self._control_state.statistics
        run: TrainingRun | None = None
        """The attempt of now, or the lost one, in whose folder the next session is stored."""
        with ExitStack() as noted:
            try:
                while True:
                    self._control_state.shutdown.cancel_on_request()
                    choosers = await asyncio.to_thread(self._choosers, experiment, prepared.profile)
                    is_resumed, is_again = stored is not None, run is not None
                    run = await self._open(experiment, stored, prepared.folder, run)
                    newest.stored = run.session.stored
                    if not is_again:
                        statistics.moments = noted.enter_context(run.session.stored.last_moments(prepared.killed))
                    run.session.coordinator.tell(SessionBegun(is_resumed=is_resumed, is_again=is_again))
                    statistics.total_steps = experiment.steps  # a group may do others
                    try:
                        result = await self._train_in(run, experiment, *choosers, resumed=is_resumed)
                    except GoneError as gone:
                        self._leave_lost(run, gone)
                    else:
                        self._events.emit(Ended(result.summary))
                        return result
                    stored = None
                    await self._threads.disk.run(run.session.stored.empty)
                    if run.session.state.step_log is not None:
                        run.session.state.step_log.rolled_back(0)
                    experiment = await asyncio.to_thread(Experiment, prepared.config)
                    experiment.run_id = run.session.id
                    experiment.begin_at(prepared.first)
            except BaseException:
                if run is not None:
                    await run.let_go()
                raise

    def _leave_lost(self, run: TrainingRun, gone: GoneError) -> None:
        """Leave a run whose session is lost. Raises the error with which it ends, unless it begins again."""
        self._control_state.leave()
        coordinator, member = run.session.coordinator, run.session.experiment.config.member
        told = SessionGone(
            has_checkpoint=run.session.stored.shared is not None,
            is_closed=isinstance(gone, ClosedError),
            steps=self._control_state.statistics.steps,
            is_member=member is not None,
        )
        first = coordinator.state.mending
        match coordinator.tell(told):
            case Action.END_RESUMABLE:
                command = going_on(run.session.stored, self._control_state.shutdown.resume_command)
                raise type(gone)(_gone(run.session.id, gone, command)) from gone
            case Action.END_BY_FIRST if first is not None:
                raise first from None  # the trainer fails at it, and would again
            case Action.END:
                raise gone
        # No checkpoint was on both sides yet, so both share the beginning.
        _log.warning("the run begins again", reason=str(gone))
        if member is None:  # a member goes back only as far as its group does
            self._events.emit(BeganAgain())

    def _choosers(
        self, experiment: Experiment, profile: Profile | None
    ) -> tuple[DecisionLoop | None, TrainerChoice | None]:
        """Make what chooses the layout and the trainer of a run beside its operators. Raises PlanError."""
        statistics, pinning = self._control_state.statistics, self._control_state.pinning

        def is_held() -> bool:
            moves_cut = policy_of(experiment.config) == EDGEMOVE
            return pinning.now.trainer is not None or (moves_cut and pinning.now.cuts is not None)

        choice = make_choice(experiment, profile, statistics, self._metrics.candidates, is_held)
        profile_with = None if choice is None else choice.knowledge.profile_with
        decisions = make_decision_loop(experiment, profile, statistics, self._metrics.engine, profile_with)
        return decisions, choice

    async def _open(
        self,
        experiment: Experiment,
        stored: StoredSession | None,
        folder: LocalFiles | None,
        lost: TrainingRun | None,
    ) -> TrainingRun:
        """Open a session, or resume a stored one. lost: the attempt before in this process. Raises IsthmusError."""
        config, threads, clients = experiment.config, self._threads, self._clients
        limits = [trainer.give_up_seconds for trainer in config.all_trainers if trainer.give_up_seconds is not None]
        upgrade_wait_seconds = config.upgrade.wait_seconds
        retry = Retry(min(limits, default=None), self._events.emit, upgrade_wait_seconds)
        step_log, disk = config.checkpoints.step_log, threads.disk
        pause, emit, statistics = self._control_state.pause, self._events.emit, self._control_state.statistics
        if stored is not None:
            session = await disk.run(resume_session, stored, clients, experiment, threads, retry, step_log)
            training = await TrainingLoop.made(session, pause, self._events, statistics)
            return TrainingRun(session, training, pause, emit, statistics)
        patience = retry  # the others of a group wait for a member, as it waits for them, and a run waits in its middle
        if lost is None and config.member is None:
            seconds = [trainer.connect_timeout_seconds for trainer in config.all_trainers]
            limit_seconds = min([max(seconds, default=0.0), *limits])  # alone, it waits for nobody
            patience = Retry(limit_seconds, emit, upgrade_wait_seconds)
        kept = folder if config.member is None else None
        before = None if lost is None else lost.session.stored
        session = await open_when_there(clients, experiment, threads, retry, patience, kept, step_log, before)
        try:
            training = await TrainingLoop.made(session, pause, self._events, statistics)
        except BaseException:
            await session.abandon()
            await disk.run(session.stored.remove)
            raise
        return TrainingRun(session, training, pause, emit, statistics)

    async def _train_in(
        self,
        run: TrainingRun,
        experiment: Experiment,
        decisions: DecisionLoop | None,
        choice: TrainerChoice | None,
        *,
        resumed: bool,
    ) -> TrainingResult:
        await self._control_state.begin(run, decisions, choice)
        self._events.emit(SessionOpened(run))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._threads.reading.run, experiment.close)
            if decisions is not None:
                timers = partial(timer_meanwhile, run.session)
                await stack.enter_async_context(decisions.running(run, timers))
            if self._again is not None:
                program = run.session.state.plan.training.program(AGENT)
                await stack.enter_async_context(self._again.running(run.deployer, program))
            if choice is not None:
                await stack.enter_async_context(choice.running(run, decisions))
            return await run.run(self._write_result, resumed=resumed)


def _gone(session_id: str, gone: GoneError, command: str) -> str:
    return (
        f"{gone}; should it come back there, {command} goes on, and after `edge-agent forget {session_id}` it "
        "begins from the start"
    )
