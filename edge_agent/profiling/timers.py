"""Timers of runs of consecutive blocks: on this device, or on a trainer in a session that nobody trains in."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from edge_agent.adaptation.measuring import StepTimer, TimedStep
from edge_agent.config import EdgeConfig
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.profiling.memory import available_bytes, needed_bytes
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.opening import open_session, session_beside
from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.concurrency.threads import SWITCH_SECONDS, WorkerThread
from shared.control.formatting import size
from shared.errors import BusyError, FencedError, PlanError, RefusedError, SessionLostError
from shared.model.chain import Chain
from shared.placement import AGENT
from shared.training.device import prepare_building_thread, prepare_process
from shared.training.measure import stage_step
from shared.training.policies import BackwardPolicy, policy_of_stage
from shared.training.stage import lone_stage
from shared.training.step_seconds import StepSeconds


class Timer(Protocol):
    """A timer of steps of consecutive blocks at one worker, each under the experiment's K and backward policy."""

    async def __call__(self, first: int, stop: int, repeats: int, samples: int | None = None) -> Sequence[StepSeconds]:
        """Return the seconds of each step of blocks [first, stop). samples: of a step; a whole batch where it is left out."""


_NOT_OF_THE_BLOCKS = (BusyError, FencedError, SessionLostError)
"""Refusals that say nothing of the blocks that were to be measured."""


def timer_here(experiment: Experiment, threads: AgentThreads, policy: type[BackwardPolicy] | None = None) -> Timer:
    """Times blocks on this device. policy: the backward policy; that of the experiment and its K where it is left out."""

    def measure(first: int, stop: int, repeats: int, samples: int | None) -> list[StepSeconds]:
        step = _step_here(experiment, experiment.chain, first, stop, samples, policy)
        return [step() for _ in range(repeats + 1)][1:]

    async def timer(first: int, stop: int, repeats: int, samples: int | None = None) -> list[StepSeconds]:
        return await threads.compute.run(measure, first, stop, repeats, samples)

    return timer


def _step_here(
    experiment: Experiment,
    chain: Chain,
    first: int,
    stop: int,
    samples: int | None = None,
    policy: type[BackwardPolicy] | None = None,
) -> Callable[[], StepSeconds]:
    """Return a function that does one step of blocks of this chain on this device, which changes their weights."""
    backward, staleness = experiment.config.deployment.backward, experiment.placement.staleness
    return stage_step(
        lone_stage(chain, first, stop, experiment.recipe, experiment.held.device),
        chain.features[first],
        policy or policy_of_stage(backward, staleness, ends_model=stop == len(chain.blocks)),
        input_gradient=first > 0 and chain.gradients_return(first),
        samples=samples,
    )


def timer_at(trainer: TrainerWorker) -> Timer:
    """Times blocks on a trainer."""
    return partial(trainer.client.measure_stage, trainer.session_id)


def is_of_the_blocks(refused: RefusedError, run: tuple[int, int]) -> bool:
    """Tell whether a trainer has refused this run of blocks, and may take a shorter one."""
    return not isinstance(refused, _NOT_OF_THE_BLOCKS) and run[1] - run[0] > 1


@asynccontextmanager
async def timer_meanwhile(session: OpenSession, worker: str) -> AsyncIterator[StepTimer]:
    """A timer of single steps at a worker of a session that trains, which this leaves as it is.

    On a trainer it has another session, here a copy of the model. Each step takes its turn with the work of the training.
    Raises IsthmusError where there is no room.
    """
    if worker == AGENT:
        yield _StepsHere(session, await _built_aside(session.experiment))
        return
    async with session_beside(session, worker) as beside:

        async def timer(first: int, stop: int) -> TimedStep:
            (step,) = await beside.client.measure_stage(beside.session_id, first, stop, 1)
            return TimedStep(sum(step), 2 * sum(step))  # the trainer has done one before that it has not timed

        yield timer


class _StepsHere:
    """Times single steps on this device, on the compute thread, where torch's state has its owner."""

    def __init__(self, session: OpenSession, copy: Chain) -> None:
        self._experiment, self._compute = session.experiment, session.threads.compute
        self._copy = copy
        self._run: tuple[int, int] | None = None
        """Blocks of the latest step."""
        self._step: Callable[[], StepSeconds]

    async def __call__(self, first: int, stop: int) -> TimedStep:
        """Time a step as `StepTimer` says."""
        return await self._compute.run(self._timed, first, stop)

    def _timed(self, first: int, stop: int) -> TimedStep:
        begun = time.perf_counter()
        if self._run != (first, stop):
            _check_room(self._experiment, [(first, stop)])
            self._run, self._step = (first, stop), _step_here(self._experiment, self._copy, first, stop)
        seconds = sum(self._step())
        return TimedStep(seconds, time.perf_counter() - begun)


async def _built_aside(experiment: Experiment) -> Chain:
    """Return a chain of the same model, built beside the steps of the training, for which these do not wait."""
    _check_room(experiment, [(0, len(experiment.chain.blocks))])
    building, before = WorkerThread("building", prepare_building_thread), sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return await building.run(experiment.built_again)
    finally:
        sys.setswitchinterval(before)
        await asyncio.to_thread(building.close)


def _check_room(experiment: Experiment, runs: Sequence[tuple[int, int]]) -> None:
    needed, free = max(needed_bytes(experiment.chain, *run) for run in runs), available_bytes()
    if needed > free:
        raise PlanError(f"measuring takes {size(needed)} of memory here, and {size(free)} are free")


@asynccontextmanager
async def measured_experiment(
    config: EdgeConfig, build: Callable[[EdgeConfig], Experiment] = Experiment
) -> AsyncIterator[tuple[Experiment, AgentThreads]]:
    """The experiment of a configuration, and the threads of its agent, while it is measured. Raises IsthmusError."""
    prepare_process(config.compute.threads)
    experiment = await asyncio.to_thread(build, config)
    try:
        with AgentThreads.started() as threads:
            yield experiment, threads
    finally:
        await asyncio.to_thread(experiment.close)


@asynccontextmanager
async def trainer_clients(experiment: Experiment) -> AsyncIterator[dict[str, TrainerClient]]:
    """Clients of all trainers of the experiment, by name. Raises IsthmusError."""
    config = experiment.config
    async with AsyncExitStack() as stack:
        clients = {}
        for trainer in config.all_trainers:
            if trainer.name in experiment.trainers:
                client = TrainerClient(trainer, config.link, access=trainer_access(trainer, config.tls))
                clients[trainer.name] = await stack.enter_async_context(client)
        yield clients


@asynccontextmanager
async def measuring_session(experiment: Experiment, threads: AgentThreads) -> AsyncIterator[OpenSession]:
    """A session on all trainers of the experiment, in which nothing is trained; nothing is left of it. Raises IsthmusError."""
    async with trainer_clients(experiment) as clients:
        retry = Retry(0)  # a lost trainer ends the measurement
        session = await open_session(clients, experiment, threads, retry)
        try:
            async with session.keep_alive():
                yield session
        finally:
            await session.abandon()  # whatever came of it: a trainer that does not hear of it frees the session later
