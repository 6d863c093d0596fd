"""The trainer with which a run among candidates begins: the first of the configuration that answers and would have it."""

import asyncio

import structlog

from edge_agent.config import EdgeConfig
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import trainer_access
from shared.client.trainer import TrainerClient
from shared.errors import BusyError, IsthmusError, RefusedError, UnreachableError

_log = structlog.get_logger(__name__)
MOMENT_SECONDS = 1.0
"""Time that a candidate has after the first one of all has answered. A trainer in reach answers in less."""


async def first_trainer(config: EdgeConfig) -> str:
    """Return the name of the first candidate that would open a session now. All are asked at once.

    Raises UnreachableError if none can be reached, and otherwise the IsthmusError of one that would not.
    """
    trainers = config.all_trainers
    asked = [asyncio.create_task(_ask(config, trainer)) for trainer in trainers]
    try:
        waiting, would = set(asked), list[asyncio.Task[None]]()
        while waiting and not would:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            would = [asking for asking in done if asking.exception() is None]
        if would and (before := asked[: min(map(asked.index, would))]):
            await asyncio.wait(before, timeout=MOMENT_SECONDS)
        failures = dict[str, IsthmusError]()
        for trainer, asking in zip(trainers, asked, strict=True):
            if not asking.done():
                failures[trainer.name] = UnreachableError("it has not answered yet")
            elif isinstance(failure := asking.exception(), IsthmusError):
                failures[trainer.name] = failure
            else:
                for name, reason in failures.items():
                    _log.warning("a candidate is left out at the beginning", trainer=name, reason=str(reason))
                return trainer.name
    finally:
        for asking in asked:
            asking.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    for failure in failures.values():
        if not isinstance(failure, UnreachableError):
            raise failure
    why = "; ".join(f"{name}: {failure}" for name, failure in failures.items())
    raise UnreachableError(f"none of the trainers can be reached: {why}")


async def _ask(config: EdgeConfig, trainer: TrainerAddressConfig) -> None:
    """Wait until a trainer answers. Raises the IsthmusError with which it would not open a session."""
    async with TrainerClient(trainer, config.link, access=trainer_access(trainer, config.tls)) as client:
        found = await client.probe(config.model.factory)
    if found.stopping:
        raise UnreachableError(f"trainer {trainer.name!r} is about to stop")
    if not found.model_allowed:
        raise RefusedError(f"trainer {trainer.name!r} does not allow {config.model.factory!r} (models.allowed)")
    if not found.free_sessions:
        raise BusyError(f"trainer {trainer.name!r} has no room for another session")
