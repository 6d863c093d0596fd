"""Trainers that take over what another one has: each is asked whether it serves, has room and allows the model.

A stand-in does so at once: a worker without a state that stays away is opened under its name there, and nobody goes back. The
placement stays as it is until the next boundary. What a trainer may have is judged as in a handover to it.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import structlog

from edge_agent.sessions.admission import release_stand_ins
from edge_agent.sessions.joining import OTHERS_SECONDS
from edge_agent.sessions.links_between import links_between, missing_links
from edge_agent.sessions.messages import abandon_at
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.silence import Silence
from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError
from shared.placement import held_blocks

_log = structlog.get_logger(__name__)


async def successors(session: OpenSession, names: Iterable[str]) -> AsyncGenerator[str]:
    """Give those of these configured trainers that would take over now, the best first. All are asked at once."""
    ranked = session.members.ranked(names)
    asked = [asyncio.create_task(_would_take_over(session, name)) for name in ranked]
    try:
        for name, would in zip(ranked, asked, strict=True):
            if await would:
                yield name
    finally:
        for asking in asked:
            asking.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _would_take_over(session: OpenSession, name: str) -> bool:
    try:
        async with asyncio.timeout(OTHERS_SECONDS):
            found = await session.members.client(name).probe(session.experiment.config.model.factory)
    except (IsthmusError, TimeoutError):
        return False
    is_member = name in session.members
    return not found.stopping and found.model_allowed and (is_member or found.free_sessions > 0)


async def find_stand_in(session: OpenSession, name: str, silence: Silence) -> bool:
    """Open the session elsewhere for a worker that has nothing to lose. Returns False where it is waited for: no trainer can
    stand in for it, or it is back."""
    await release_stand_ins(session)  # a trainer is free again if another one stood in for it
    has_stalled = name in session.members.stalled
    async with aclosing(_others(session, name)) as others:
        async for other, client in others:
            trainer = TrainerWorker(name, client, "", session.state)
            try:
                await _check(session, name, other)
                await trainer.open(session.members.opening_limit_seconds)
            except IsthmusError as failure:
                _log.warning("a trainer does not stand in", trainer=other, worker=name, reason=str(failure))
                continue
            if not (has_stalled or await silence.ask([name])):  # it loses its work to nobody
                await _give_up(session, trainer)
                return False
            trainer.is_blank = True
            session.members.stand_in(trainer, other)
            _log.info("a trainer stands in for another one", trainer=other, worker=name)
            return True
    return False


async def _give_up(session: OpenSession, trainer: TrainerWorker) -> None:
    """Leave the session of a trainer that was to stand in."""
    state, name = session.state, trainer.name
    await abandon_at(trainer.client, trainer.session_id)
    await state.threads.disk.run(state.stored.set_trainer_session, name, session.members[name].session_id)
    _log.info("nobody stands in for a worker that is back", worker=name)


async def _others(session: OpenSession, name: str) -> AsyncGenerator[tuple[str, TrainerClient]]:
    """Give the trainers that serve and have no blocks; first the one of this name, where another stands in for it."""
    placement = session.placement
    if (own := session.members.own_client(name)) is not None:
        yield name, own
    taken = {name, *session.members.stand_ins.values()}
    configured = [trainer.name for trainer in session.experiment.config.all_trainers]
    free = [one for one in configured if one not in taken and not held_blocks(placement, one)]
    async with aclosing(successors(session, free)) as would:
        async for other in would:
            yield other, session.members.client(other)


async def _check(session: OpenSession, name: str, other: str) -> None:
    """Refuse a trainer that may not have what a worker has, or cannot be linked. Raises an IsthmusError."""
    if other == name:
        return
    plan = await session.state.plan_of(session.experiment.handed_over(session.placement, other, name))
    for reason in (await missing_links(session, (one for one in links_between(plan) if other in one))).values():
        raise reason
