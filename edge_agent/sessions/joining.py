"""Joining the trainers of a session, and taking in those that have nothing of it.

A trainer without blocks has no state that could be lost, so nobody waits for it: where it does not answer it is absent until
somebody wants to give it blocks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

import structlog

from edge_agent.sessions.member import Member, Tickets
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.opening import opening_request
from shared.checkpoint import CheckpointName
from shared.client.retry import Retry
from shared.concurrency.tasks import gathered
from shared.errors import BusyError, IsthmusError, SessionLostError
from shared.placement import Placement
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
OTHERS_SECONDS = 2.0
"""How long a trainer that nobody needs may take to answer. Longer than gRPC ever waits between connections."""
T = TypeVar("T")
Answers = dict[str, pb.JoinSessionResponse]


class Joined(NamedTuple):
    """What the trainers of a session have said."""

    answers: Answers
    """By the trainer, what it could go on with. Those that are not here and not lost are absent."""
    lost: dict[str, SessionLostError]
    """The trainers that answer and have nothing of the session any more, with their words."""


async def join(session: OpenSession, needed: Collection[str], wanted: Collection[str] = ()) -> Joined:
    """Become the only agent of the session at every trainer, and hear what each could go on with.

    needed: the trainers without which nothing goes on; nothing is written on any side while one of them does not answer.
    wanted: others that are to be taken in, although they were absent; one that has nothing of the session gets it opened again.
    Raises the IsthmusError of a trainer that is needed.
    """
    asked = [name for name in session.members if name in needed or name in wanted or name not in session.absent]

    serving = await _of_all(session, asked, needed, wanted, lambda name: session.members[name].client.check_serving())
    lost: dict[str, SessionLostError] = {}

    async def join_one(name: str) -> pb.JoinSessionResponse | None:
        try:
            return await session.join(name)
        except SessionLostError as gone:
            if name in wanted and name not in needed:
                return await open_again(session, name)
            if name not in needed:
                raise
            lost[name] = gone
            return None

    await session.count_term_up()
    try:
        answers = await _of_all(session, serving, needed, wanted, join_one)
    except BusyError:
        session.term_is_unused = len(session.members) == 1  # of several, another may have taken it
        raise
    session.absent.difference_update(answers)
    return Joined({name: answer for name, answer in answers.items() if answer is not None}, lost)


async def open_again(session: OpenSession, worker: str) -> pb.JoinSessionResponse:
    """Open the session at a trainer that has nothing of it any more, and join it there. Raises IsthmusError."""
    client = session.members[worker].client
    opened = await client.open_session(opening_request(session.experiment, worker, session.placement))
    session.replace_member(worker, Member(client, opened.session_id))
    _log.info("session opened again at a trainer that had lost it", trainer=worker)
    return await session.join(worker)


async def clear_others(session: OpenSession, answers: Answers, wanted: Collection[str] = ()) -> None:
    """Have the trainers without blocks hold none in their own eyes, too: the next change may give them some."""
    placement, beginning = session.placement, CheckpointName(0, 0)
    holding = session.holders(placement)
    stale = [worker for worker, answer in answers.items() if worker not in holding and not _is_clear(session, answer)]
    await _of_all(session, stale, (), wanted, lambda worker: session.restore_at(worker, beginning, placement))


def _is_clear(session: OpenSession, answer: pb.JoinSessionResponse) -> bool:
    return answer.whole and answer.placement_version == session.placement.version


async def restore(session: OpenSession, answers: Answers, name: CheckpointName, placement: Placement) -> Tickets:
    """Have every trainer go back to a checkpoint under a placement, which is in force then.

    Where one with blocks cannot, the others come to an end first: what is interrupted in the middle leaves a session that is of
    no use.
    """
    holding, plan = session.holders(placement), await session.plan_of(placement)
    restoring = [session.restore_at(worker, name, placement) for worker in holding]
    tickets: dict[str, Sequence[pb.Ticket]] = {}
    for worker, outcome in zip(holding, await asyncio.gather(*restoring, return_exceptions=True), strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        tickets[worker] = outcome
    session.plan, session.lineage = plan, session.stored.session_term
    await clear_others(session, answers)
    return tickets


async def record_trainer_sessions(session: OpenSession) -> None:
    """Write down the ids that the trainers have given the session, where they are others. Raises StorageError."""
    known = session.stored.record.trainer_sessions
    for worker, member in session.members.items():
        if known.get(worker, "") != member.session_id:
            await session.workers.disk.run(session.stored.set_trainer_session, worker, member.session_id)


async def are_ready(session: OpenSession, workers: Collection[str]) -> bool:
    """Whether these trainers have the session in memory, so that they can be given blocks."""
    if not session.members.keys() >= set(workers) or not session.absent.isdisjoint(workers):
        return False
    found = await _of_all(session, workers, (), (), lambda name: session.remind(name))
    return found.keys() == set(workers)


async def answer_again(session: OpenSession, workers: Collection[str]) -> None:
    """Wait shortly until these trainers answer, which were away. Raises the IsthmusError of one that does not."""
    everybody = session.left_out | session.members
    # One may serve again while the connection to it still waits until it is tried the next time.
    await gathered(*(Retry(OTHERS_SECONDS).run(everybody[name].client.check_serving) for name in workers))


async def _of_all(
    session: OpenSession,
    asked: Collection[str],
    needed: Collection[str],
    patiently: Collection[str],
    call: Callable[[str], Awaitable[T]],
) -> dict[str, T]:
    """What a call gives at trainers. One that is not needed is absent where it fails, or takes long.

    patiently: the trainers that may take long, and to which a lost call is made again for a while.

    Raises the IsthmusError of one that is needed.
    """
    found: dict[str, T] = {}

    async def ask(name: str) -> None:
        if name in needed:
            found[name] = await call(name)
            return
        try:
            if name in patiently:
                # One of the two connections to it may wait until it is tried the next time, when the other is up again.
                found[name] = await Retry(OTHERS_SECONDS).run(lambda: call(name))
                return
            async with asyncio.timeout(OTHERS_SECONDS):
                found[name] = await call(name)
        except (IsthmusError, TimeoutError) as failure:
            session.miss(name, str(failure) or "it did not answer")

    await gathered(*(ask(name) for name in asked))
    return found
