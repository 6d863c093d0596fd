"""A finished training whose results could not be written: they are written now, without any trainer."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import structlog

from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.messages import FAREWELL_SECONDS
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.training.best_weights import best_of
from edge_agent.training.history import HistoryRow
from edge_agent.training.improvement import ends_early
from edge_agent.training.result import TrainingResult
from shared.client.credentials import trainer_access
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


def kept_result(experiment: Experiment, stored: StoredSession) -> TrainingResult | None:
    """Return the result of a session that has done all steps of `experiment`, has ended early, or was asked to finish before
    them; None if some are left, or it is not whole.

    The experiment's module then has its weights. Blocks. Raises StorageError.
    """
    if (kept := stored.result()) is None:
        return None
    rows = [HistoryRow(*row) for row in kept.facts.get("history", ())]
    training, steps = experiment.config.training, kept.name.step
    ends_here = experiment.steps in (steps, kept.facts.get("finished_of_steps"))
    if not ends_here and not ends_early(rows, training.early_stop):
        return None
    result = TrainingResult.kept(experiment.chain.module.to("cpu"), kept.facts, kept.data)
    return replace(result, best=best_of(rows, training.keep_best, stored, result.module, steps))


async def deliver(
    result: TrainingResult,
    experiment: Experiment,
    stored: StoredSession,
    write_result: Callable[[TrainingResult], object],
) -> None:
    """Hand the result to `write_result`, in a thread, and end the session on all sides. Raises the errors of `write_result`."""
    _log.info("training was done already; its results are written now", session=stored.record.session_id)
    await asyncio.to_thread(write_result, result)
    goes_on = experiment.config.checkpoints.keep_finished and stored.shared is not None
    await asyncio.to_thread(stored.finish if goes_on else stored.remove)
    with suppress(
        IsthmusError, TimeoutError
    ):  # a trainer that does not hear of it forgets the session by itself, later
        async with asyncio.timeout(FAREWELL_SECONDS):
            await _close_at_trainers(experiment.config, stored, resumable=goes_on)


async def _close_at_trainers(config: EdgeConfig, stored: StoredSession, *, resumable: bool) -> None:
    async with AsyncExitStack() as stack:
        for trainer in config.all_trainers:
            if (session_id := stored.record.trainer_sessions.get(trainer.name)) is not None:
                client = TrainerClient(trainer, config.link, access=trainer_access(trainer, config.tls))
                stack.push_async_exit(client)
                await client.close_session(session_id, pb.Fence(session_term=stored.session_term), resumable=resumable)
