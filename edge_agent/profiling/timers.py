"""What times runs of consecutive blocks: on this device, or on a trainer in a session that nobody trains in."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from edge_agent.experiment.building import Experiment
from edge_agent.experiment.workers import Workers
from edge_agent.sessions.open_session import Member, OpenSession
from edge_agent.sessions.opening import open_session
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.training.measure import measure_stage
from shared.training.policies import policy_of_stage
from shared.training.stage import lone_stage

Timer = Callable[[int, int, int], Awaitable[Sequence[float]]]
"""Seconds of each of some steps of blocks [first, stop): called with first, stop, and how many steps.

A step is that of a stage under the experiment's K and backward policy.
"""


def timer_here(experiment: Experiment, workers: Workers) -> Timer:
    """Times blocks on this device."""
    chain, deployment = experiment.chain, experiment.config.deployment

    def measure(first: int, stop: int, repeats: int) -> list[float]:
        return measure_stage(
            lone_stage(chain, first, stop, experiment.recipe, experiment.held.device),
            chain.features[first],
            input_gradient=first > 0 and chain.gradients_return(first),
            repeats=repeats,
            policy=policy_of_stage(
                deployment.backward, experiment.placement.staleness, ends_model=stop == len(chain.blocks)
            ),
        )

    async def timer(first: int, stop: int, repeats: int) -> list[float]:
        return await workers.compute.run(measure, first, stop, repeats)

    return timer


def timer_at(member: Member) -> Timer:
    """Times blocks on a trainer."""

    async def timer(first: int, stop: int, repeats: int) -> list[float]:
        return await member.client.measure_stage(member.session_id, first, stop, repeats)

    return timer


@asynccontextmanager
async def measuring_session(experiment: Experiment, workers: Workers) -> AsyncIterator[OpenSession]:
    """A session on all trainers of the experiment, in which nothing is trained; nothing is left of it. Raises IsthmusError."""
    config = experiment.config
    async with AsyncExitStack() as stack:
        clients = {}
        for trainer in config.all_trainers:
            if trainer.name in experiment.trainers:
                client = TrainerClient(trainer, config.link, access=trainer_access(trainer, config.tls))
                clients[trainer.name] = await stack.enter_async_context(client)
        retry = Retry(0)  # a lost trainer ends the measurement
        session = await open_session(clients, experiment, workers, retry)
        try:
            async with session.keep_alive():
                yield session
        finally:
            await session.abandon()  # whatever came of it: a trainer that does not hear of it frees the session later
