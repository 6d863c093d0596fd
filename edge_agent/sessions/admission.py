"""Admission of a trainer to a running session, and its release: beside training, which neither pauses nor notices it."""

import asyncio

import structlog

from edge_agent.sessions.joining import OTHERS_SECONDS
from edge_agent.sessions.membership import MemberStatus
from edge_agent.sessions.messages import FAREWELL_SECONDS
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.trainer_worker import TrainerWorker
from edge_agent.sessions.worker_calls import WorkerPosition
from shared.checkpoint import CheckpointName
from shared.client.retry import Retry
from shared.errors import FencedError, IsthmusError, SessionLostError
from shared.placement import held_blocks

_log = structlog.get_logger(__name__)


async def admit(session: OpenSession, name: str) -> None:
    """Have a trainer as a member of the running session: the model is built there, and it is joined with the present term.

    It has no blocks until a placement gives it some, which also tells it lineage and step. A trainer that was left out,
    or absent, forgets the blocks that it had. Repeating it changes nothing. Raises the IsthmusError of the trainer.
    """
    members, trainer = session.members, _trainer(session, name)
    # A trainer may serve again while its connection still waits for the next attempt.
    await Retry(OTHERS_SECONDS).run(trainer.client.check_serving)
    try:
        if members.are_present([name]):
            await trainer.remind()
        elif members.status(name) is MemberStatus.BEHIND:
            await _have_nothing(session, trainer)
        else:
            await _join(session, trainer)
    except SessionLostError:
        await trainer.open(members.opening_limit_seconds)
    members.admit(trainer)
    if name in session.stored.record.left_out:
        await session.threads.disk.run(session.stored.set_left_out, members.left_out)


async def take_in(session: OpenSession, name: str) -> WorkerPosition:
    """Have a trainer as a member in a recovery, and return what it could continue with. Raises its IsthmusError."""
    trainer, limit_seconds = _trainer(session, name), session.members.opening_limit_seconds
    try:
        position = await (trainer.join() if trainer.session_id else trainer.open(limit_seconds))
    except SessionLostError:
        position = await trainer.open(limit_seconds)
    session.members.admit(trainer)
    return position


def _trainer(session: OpenSession, name: str) -> TrainerWorker:
    """Return a trainer of the session, or make one of a candidate."""
    members = session.members
    # A candidate has an id if an earlier admission was interrupted.
    recorded = session.stored.record.trainer_sessions.get(name, "")
    return members.everybody.get(name) or TrainerWorker(name, members.client(name), recorded, session.state)


async def _join(session: OpenSession, trainer: TrainerWorker) -> None:
    """Join a trainer that is no present member, and make it hold nothing. Raises SessionLostError if it has not the session."""
    if not trainer.session_id:
        await trainer.open(session.members.opening_limit_seconds)
        return
    try:
        position = await trainer.join()
    except FencedError:  # It was joined with this term before it was away.
        position = WorkerPosition()
    in_force = True, session.placement.version
    if (position.is_whole, position.placement_version) != in_force:
        await _have_nothing(session, trainer)
    else:
        trainer.forget_blocks()


async def _have_nothing(session: OpenSession, trainer: TrainerWorker) -> None:
    """Make a trainer hold nothing under the placement in force. Raises SessionLostError if it has not the session."""
    trainer.forget_blocks()
    await trainer.restore(CheckpointName(0, 0), session.state.plan)


async def release(session: OpenSession, name: str) -> None:
    """Have a member without blocks forget the session, which goes on without it. It is a candidate then.

    A trainer that does not answer forgets the session by itself, later. Raises StorageError.
    """
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await session.members[name].end(resumable=False)
    except (IsthmusError, TimeoutError) as failure:
        _log.warning("a trainer was not told of its release", trainer=name, reason=str(failure) or "it did not answer")
    await session.threads.disk.run(session.stored.forget_trainer_session, name)
    session.members.release(name)
    _log.info("trainer released", trainer=name)


async def release_stand_ins(session: OpenSession) -> None:
    """Release the sessions under the names of workers that have no blocks any more: others have these by their own names.

    Raises StorageError.
    """
    for name in [one for one in session.members.stand_ins if not held_blocks(session.placement, one)]:
        await release(session, name)
