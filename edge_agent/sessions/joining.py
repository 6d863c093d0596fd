"""Joining the trainers of a session.

A trainer without blocks has no state to lose, so the run does not wait for it. If it does not answer, it is absent
until a placement needs it (`admission`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import structlog

from edge_agent.sessions.membership import MemberStatus
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.trainer_worker import TrainerWorker
from edge_agent.sessions.worker_calls import Tickets, WorkerPosition
from shared.checkpoint import CheckpointName
from shared.concurrency.tasks import gathered
from shared.errors import BusyError, IsthmusError, OutdatedTermError, SessionLostError
from shared.placement import PlacementPlan
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
OTHERS_SECONDS = 2.0
"""Longest wait for an answer of a trainer that is not needed. It is longer than gRPC ever waits between connections."""
T = TypeVar("T")


class JoinAnswers(NamedTuple):
    """The answers of a session's trainers."""

    positions: dict[str, WorkerPosition]
    """Positions by trainer. A trainer neither here nor in `lost` is absent."""
    lost: dict[str, SessionLostError]
    """Trainers that answer and have lost the session, with their words."""


async def join(session: OpenSession) -> JoinAnswers:
    """Become the only agent of the session at every trainer, and learn each one's position.

    Nothing is written on any side while a trainer that is needed does not answer. Where another agent has had the session
    since, and is gone, this one takes it back. Raises the IsthmusError of a trainer that is needed.
    """
    members = session.members
    asked = [name for name in members if members.status(name) is not MemberStatus.ABSENT]
    serving = await _of_all(session, asked, lambda trainer: trainer.client.check_serving())
    await session.state.begin_term()
    try:
        try:
            return await _join_with_term(session, serving)
        except OutdatedTermError as outdated:
            _log.warning("this agent takes the session back from another one, which is gone", reason=str(outdated))
            await session.state.begin_term(outdated.term)
            return await _join_with_term(session, serving)
    except BusyError:
        if len(members) == 1:  # If several were asked, another may have taken it.
            session.state.save_term()
        raise


async def _join_with_term(session: OpenSession, serving: Iterable[str]) -> JoinAnswers:
    """Ask trainers to follow this agent's term. Raises OutdatedTermError if some need a higher one and all others agree."""
    members, lost, outdated = session.members, dict[str, SessionLostError](), list[OutdatedTermError]()

    async def join_one(trainer: TrainerWorker) -> WorkerPosition | None:
        try:
            return await trainer.join()
        except OutdatedTermError as refusal:
            outdated.append(refusal)
        except SessionLostError as gone:
            if members.may_miss(trainer.name):
                raise
            lost[trainer.name] = gone
        return None

    positions = await _of_all(session, serving, join_one)
    if outdated:
        raise max(outdated, key=lambda refusal: refusal.term)
    return JoinAnswers({name: position for name, position in positions.items() if position is not None}, lost)


async def clear_others(session: OpenSession, positions: Mapping[str, WorkerPosition]) -> None:
    """Make the trainers without blocks hold none in their own records: the next change may give them some."""
    plan, beginning = session.state.plan, CheckpointName(0, 0)
    in_force = True, session.placement.version
    idle = {name: at for name, at in positions.items() if session.members.may_miss(name)}
    stale = [name for name, at in idle.items() if (at.is_whole, at.placement_version) != in_force]
    told = await _of_all(session, stale, lambda trainer: trainer.restore(beginning, plan))
    session.members.note_told([*told, *(idle.keys() - stale)])


async def restore(
    session: OpenSession, positions: Mapping[str, WorkerPosition], name: CheckpointName, plan: PlacementPlan
) -> Tickets:
    """Restore a checkpoint at every trainer under a placement, which is then in force.

    If one with blocks cannot, the others finish first: a restore that is interrupted in the middle leaves a useless session.
    """
    holding = session.members.holders(plan.placement)
    restoring = [trainer.restore(name, plan) for trainer in holding]
    tickets: dict[str, Sequence[pb.Ticket]] = {}
    for trainer, outcome in zip(holding, await asyncio.gather(*restoring, return_exceptions=True), strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        tickets[trainer.name] = outcome
    session.put_into_force(plan)
    session.state.lineage = session.stored.session_term
    await clear_others(session, positions)
    return tickets


async def _of_all(
    session: OpenSession,
    asked: Iterable[str],
    call: Callable[[TrainerWorker], Awaitable[T]],
) -> dict[str, T]:
    """Make a call at trainers and return the answers. A trainer that is not needed is absent if it fails, or takes long.

    Raises the IsthmusError of a needed trainer.
    """
    found: dict[str, T] = {}

    async def ask(name: str) -> None:
        trainer = session.members[name]
        if not session.members.may_miss(name):
            found[name] = await call(trainer)
            return
        try:
            async with asyncio.timeout(OTHERS_SECONDS):
                found[name] = await call(trainer)
        except (IsthmusError, TimeoutError) as failure:
            session.members.miss(name, str(failure) or "it did not answer")

    await gathered(*(ask(name) for name in asked))
    return found
