"""Whether trainers can dial each other as a placement wants it: each is asked, before anything rests on it."""

from collections import defaultdict
from collections.abc import Iterable

from edge_agent.sessions.open_session import OpenSession
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, RefusedError, UnreachableError
from shared.placement import AGENT, Link, PlacementPlan


def links_between(plan: PlacementPlan) -> set[Link]:
    """The links between trainers under a placement, those of an evaluation too."""
    return {link for link in {*plan.training.links, *plan.evaluation.links} if AGENT not in link}


async def missing_links(session: OpenSession, wanted: Iterable[Link]) -> dict[Link, IsthmusError]:
    """The links that cannot be dialled, each with what says whose it is, where it leads and what is in its way.

    That is a RefusedError where an operator has not allowed it, and else an UnreachableError. Raises the IsthmusError of a
    trainer that cannot be asked.
    """
    by_dialer: dict[str, list[Link]] = defaultdict(list)
    for link in sorted(wanted):
        by_dialer[link.dialer].append(link)
    found: dict[Link, IsthmusError] = {}

    async def ask(dialer: str, several: list[Link]) -> None:
        addresses = [session.members[link.listener].client.address for link in several]
        checks = await session.members[dialer].client.check_peers(addresses, session.id)
        for link, address, check in zip(several, addresses, checks, strict=True):
            if not check.allowed or check.reason:
                kind = UnreachableError if check.allowed else RefusedError
                found[link] = kind(f"worker {dialer!r} cannot dial {link.listener!r} at {address}: {check.reason}")

    await gathered(*(ask(*pair) for pair in by_dialer.items()))
    return found


async def check_links(session: OpenSession, plan: PlacementPlan, before: PlacementPlan | None = None) -> None:
    """Refuse a placement under which a trainer cannot dial another one that it is to. before: what is in force, if anything is.

    Raises RefusedError or UnreachableError, as `missing_links` says it, and the IsthmusError of a trainer that cannot be asked.
    """
    wanted = links_between(plan) - (set() if before is None else links_between(before))
    for reason in (await missing_links(session, wanted)).values():
        raise reason
