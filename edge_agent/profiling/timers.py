"""Timers of runs of consecutive blocks: on this device, or on a trainer in a session that nobody trains in."""

import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.building import Experiment
from edge_agent.profiling.memory import available_bytes, needed_bytes
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.opening import open_session, session_beside
from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.control.formatting import size
from shared.errors import BusyError, FencedError, PlanError, RefusedError, SessionLostError
from shared.model.chain import Chain
from shared.placement import AGENT
from shared.training.measure import measure_stage
from shared.training.policies import policy_of_stage
from shared.training.stage import lone_stage
from shared.training.step_seconds import StepSeconds, totals


class Timer(Protocol):
    """A timer of steps of consecutive blocks at one worker, each under the experiment's K and backward policy."""

    async def __call__(self, first: int, stop: int, repeats: int, samples: int | None = None) -> Sequence[StepSeconds]:
        """Return the seconds of each step of blocks [first, stop). samples: of a step; a whole batch where it is left out."""


_NOT_OF_THE_BLOCKS = (BusyError, FencedError, SessionLostError)
"""Refusals that say nothing of the blocks that were to be measured."""
MEANWHILE_STEPS = 4
"""Steps of each run of blocks that is measured while training goes on: it waits for them."""


def timer_here(experiment: Experiment, threads: AgentThreads, chain: Chain | None = None) -> Timer:
    """Times blocks on this device. chain: blocks to use instead of the experiment's own, whose weights change as they do."""
    chain, deployment = chain or experiment.chain, experiment.config.deployment

    def measure(first: int, stop: int, repeats: int, samples: int | None) -> list[StepSeconds]:
        return measure_stage(
            lone_stage(chain, first, stop, experiment.recipe, experiment.held.device),
            chain.features[first],
            input_gradient=first > 0 and chain.gradients_return(first),
            repeats=repeats,
            policy=policy_of_stage(
                deployment.backward, experiment.placement.staleness, ends_model=stop == len(chain.blocks)
            ),
            samples=samples,
        )

    async def timer(first: int, stop: int, repeats: int, samples: int | None = None) -> list[StepSeconds]:
        return await threads.compute.run(measure, first, stop, repeats, samples)

    return timer


def timer_at(trainer: TrainerWorker) -> Timer:
    """Times blocks on a trainer."""
    return partial(trainer.client.measure_stage, trainer.session_id)


def is_of_the_blocks(refused: RefusedError, run: tuple[int, int]) -> bool:
    """Tell whether a trainer has refused this run of blocks, and may take a shorter one."""
    return not isinstance(refused, _NOT_OF_THE_BLOCKS) and run[1] - run[0] > 1


async def measure_meanwhile(
    session: OpenSession, worker: str, runs: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Seconds of a step of each of these runs of blocks at a worker of a session that trains, which this leaves as it is.

    On a trainer in another session, here on a copy of the model; work of the training takes turns with it, and its time does
    not count. Raises IsthmusError where there is no room.
    """
    async with AsyncExitStack() as stack:
        if worker == AGENT:
            threads = session.threads
            _check_room(session.experiment, runs)
            # Where everything else draws random numbers, too: torch has one generator for all threads.
            copy = await threads.compute.run(session.experiment.built_again)
            timer = timer_here(session.experiment, threads, copy)
        else:
            timer = timer_at(await stack.enter_async_context(session_beside(session, worker)))
        return {run: statistics.median(totals(await timer(*run, MEANWHILE_STEPS))) for run in runs}


def _check_room(experiment: Experiment, runs: Sequence[tuple[int, int]]) -> None:
    needed, free = max(needed_bytes(experiment.chain, *run) for run in runs), available_bytes()
    if needed > free:
        raise PlanError(f"measuring takes {size(needed)} of memory here, and {size(free)} are free")


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
