"""The links between trainers: the check that they can be dialled, which comes before their use, and the dialling."""

from collections import defaultdict
from collections.abc import Iterable

from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Tickets
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, ProtocolError, RefusedError, UnreachableError
from shared.placement import AGENT, Link, PlacementPlan
from shared.wire.isthmus.v1 import trainer_pb2 as pb


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
