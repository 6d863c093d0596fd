"""Trainers that would take over what another one has: each is asked whether it serves, has room and allows the model."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from edge_agent.sessions.joining import OTHERS_SECONDS
from edge_agent.sessions.open_session import OpenSession
from shared.errors import IsthmusError


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
