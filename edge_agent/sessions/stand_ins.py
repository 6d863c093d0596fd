"""Stand-ins: a worker without a state that stays away is opened under its name at another trainer, and nobody goes back.

The placement stays as it is until the next boundary. What a trainer may have is judged as in a handover to it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import structlog

from edge_agent.coordinator import Action, WorkerUnanswered
from edge_agent.sessions.admission import release_stand_ins
from edge_agent.sessions.joining import OTHERS_SECONDS
from edge_agent.sessions.links_between import links_between, missing_links
from edge_agent.sessions.messages import abandon_at
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.successors import successors
from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError, UnreachableError
from shared.placement import held_blocks

_log = structlog.get_logger(__name__)


class StandIns:
    """The stand-ins of one session. Used on the event loop."""

    def __init__(self, session: OpenSession, may_begin_again: Callable[[str], bool]) -> None:
        """may_begin_again: tells whether a worker has nothing to lose."""
        self._session = session
        self._may_begin_again = may_begin_again
        trainers = session.experiment.config.all_trainers
        self._limits = {trainer.name: trainer.stand_in_after_seconds for trainer in trainers}
        self._away_since: dict[str, float] = {}
        """Time of the first unanswered question to each trainer, by time.monotonic."""

    def forget(self) -> None:
        """Count absences from now on: training goes on."""
        self._away_since.clear()

    async def find(self) -> list[str]:
        """Open the session elsewhere for workers that have nothing to lose, where the coordinator says so.

        Returns their names. Where no trainer can stand in for one, it is waited for.
        """
        return [name for name in self._needed() if await self._is_to_be_left(name) and await self._opened(name)]

    def _needed(self) -> list[str]:
        members = self._session.members
        return [name for name in members.needed if name in members and self._may_begin_again(name)]

    async def _is_to_be_left(self, name: str) -> bool:
        told = await self._ask(name)
        return told is not None and self._session.coordinator.tell(told) is Action.STAND_IN

    async def _ask(self, name: str) -> WorkerUnanswered | None:
        """Return what there is to tell of a worker; None where it answers and holds no step up."""
        limit_seconds = self._limits[name]
        if name in self._session.members.stalled:
            return WorkerUnanswered(holds_up=True, seconds=0.0, stand_in_after_seconds=limit_seconds)
        asked_seconds = time.monotonic()
        try:
            async with asyncio.timeout(OTHERS_SECONDS):
                await self._session.members[name].client.check_serving()
        except (UnreachableError, TimeoutError):
            away_seconds = time.monotonic() - self._away_since.setdefault(name, asked_seconds)
            return WorkerUnanswered(holds_up=False, seconds=away_seconds, stand_in_after_seconds=limit_seconds)
        except IsthmusError:  # Any answer shows that it is there.
            pass
        self._away_since.pop(name, None)
        return None

    async def _opened(self, name: str) -> bool:
        session = self._session
        await release_stand_ins(session)  # a trainer is free again if another one stood in for it
        async with aclosing(self._others(name)) as others:
            async for other, client in others:
                trainer = TrainerWorker(name, client, "", session.state)
                try:
                    await self._check(name, other)
                    await trainer.open(session.members.opening_limit_seconds)
                except IsthmusError as failure:
                    _log.warning("a trainer does not stand in", trainer=other, worker=name, reason=str(failure))
                    continue
                if await self._ask(name) is None:  # it is back, and loses its work to nobody
                    await self._give_up(trainer)
                    return False
                trainer.is_blank = True
                session.members.stand_in(trainer, other)
                self._away_since.pop(name, None)
                _log.info("a trainer stands in for another one", trainer=other, worker=name)
                return True
        return False

    async def _give_up(self, trainer: TrainerWorker) -> None:
        """Leave the session of a trainer that was to stand in."""
        state, name = self._session.state, trainer.name
        await abandon_at(trainer.client, trainer.session_id)
        await state.threads.disk.run(state.stored.set_trainer_session, name, self._session.members[name].session_id)
        _log.info("nobody stands in for a worker that is back", worker=name)

    async def _others(self, name: str) -> AsyncGenerator[tuple[str, TrainerClient]]:
        """Give the trainers that serve and have no blocks; first the one of this name, where another stands in for it."""
        session, placement = self._session, self._session.placement
        if (own := session.members.own_client(name)) is not None:
            yield name, own
        taken = {name, *session.members.stand_ins.values()}
        configured = [trainer.name for trainer in session.experiment.config.all_trainers]
        free = [one for one in configured if one not in taken and not held_blocks(placement, one)]
        async with aclosing(successors(session, free)) as would:
            async for other in would:
                yield other, session.members.client(other)

    async def _check(self, name: str, other: str) -> None:
        """Refuse a trainer that may not have what a worker has, or cannot be linked. Raises an IsthmusError."""
        if other == name:
            return
        session = self._session
        plan = await session.state.plan_of(session.experiment.handed_over(session.placement, other, name))
        for reason in (await missing_links(session, (one for one in links_between(plan) if other in one))).values():
            raise reason
