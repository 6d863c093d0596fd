"""The links between trainers: the check that they can be dialled, which comes before their use, the dialling, and the watch."""

import time
from collections import defaultdict
from collections.abc import Iterable

from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Tickets
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, ProtocolError, RefusedError, UnreachableError
from shared.placement import AGENT, Link, PlacementPlan
from shared.wire.isthmus.v1 import trainer_pb2 as pb

EVERY_SECONDS = 10.0
"""Interval of questions to the trainers while no step is done."""


def links_between(plan: PlacementPlan) -> set[Link]:
    """Return the links between trainers under a placement, those of an evaluation included."""
    return {link for link in {*plan.training.links, *plan.evaluation.links} if AGENT not in link}


async def missing_links(session: OpenSession, wanted: Iterable[Link]) -> dict[Link, IsthmusError]:
    """Return the links between configured trainers that cannot be dialled, each with an error that names its trainers and
    the obstacle.

    The error is a RefusedError if an operator has not allowed the link, and otherwise an UnreachableError. Raises the
    IsthmusError of a trainer that cannot be asked.
    """
    by_dialer: dict[str, list[Link]] = defaultdict(list)
    for link in sorted(wanted):
        by_dialer[link.dialer].append(link)
    found: dict[Link, IsthmusError] = {}

    async def ask(dialer: str, several: list[Link]) -> None:
        addresses = [session.members.client(link.listener).address for link in several]
        checks = await session.members.client(dialer).check_peers(addresses, session.id)
        for link, address, check in zip(several, addresses, checks, strict=True):
            if not check.allowed or check.reason:
                kind = UnreachableError if check.allowed else RefusedError
                found[link] = kind(f"worker {dialer!r} cannot dial {link.listener!r} at {address}: {check.reason}")

    await gathered(*(ask(*pair) for pair in by_dialer.items()))
    return found


async def check_links(session: OpenSession, plan: PlacementPlan, before: PlacementPlan | None = None) -> None:
    """Refuse a placement under which a trainer cannot dial another one as it should. before: the placement in force, if any.

    Raises RefusedError or UnreachableError, as in `missing_links`, and the IsthmusError of a trainer that cannot be asked.
    """
    wanted = links_between(plan) - (set() if before is None else links_between(before))
    for reason in (await missing_links(session, wanted)).values():
        raise reason


async def dial_peers(session: OpenSession, tickets: Tickets, evaluation: int = 0) -> None:
    """Make the trainers dial each other, for training or for an evaluation. Without links between them nothing happens."""
    plan, members = session.state.plan, session.members
    peers: dict[str, list[pb.Peer]] = defaultdict(list)
    for link in (plan.evaluation if evaluation else plan.training).links:
        if link.dialer in members:
            ticket = next((one.ticket for one in tickets[link.listener] if one.worker == link.dialer), None)
            if ticket is None:
                raise ProtocolError(f"trainer {link.listener!r} gave no ticket for {link.dialer!r}, which dials it")
            peers[link.dialer].append(members[link.listener].peer(ticket))
    await gathered(*(members[dialer].dial(several, evaluation) for dialer, several in peers.items()))


class LinkWatch:
    """The watch over links that stay down although both trainers answer: no other process would report them.

    It is over those of one session, for the time of one task. Used on the event loop.
    """

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._down_since: dict[Link, float] = {}
        """Time at which a link was first found down, by time.monotonic."""
        self._asked_seconds = time.monotonic()

    async def look(self, *, is_missed: bool) -> tuple[float, str] | None:
        """Return the seconds of the link that has been down for longest, if one is, and a sentence that names both trainers.

        The seconds are those since it was found down, without a step. is_missed: True if expected steps are not done; only
        then are trainers asked.
        """
        now_seconds = time.monotonic()
        if not is_missed:
            self._down_since.clear()
            self._asked_seconds = now_seconds
        if now_seconds - self._asked_seconds < EVERY_SECONDS:
            return None
        self._asked_seconds = now_seconds
        session = self._session
        wanted = links_between(session.state.plan)
        try:
            workers = {worker for link in wanted for worker in link}
            await gathered(*(session.members[worker].client.check_serving() for worker in workers))
            missing = await missing_links(session, wanted)
        except (IsthmusError, KeyError):  # A trainer is away, or left out: its absence has to end first.
            missing = {}
        self._down_since = {link: self._down_since.get(link, now_seconds) for link in missing}
        if not self._down_since:
            return None
        link, since = min(self._down_since.items(), key=lambda one: one[1])
        return now_seconds - since, str(missing[link])
