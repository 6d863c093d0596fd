"""Links between trainers that stay down although both trainers answer: no other process would report them."""

import time
from typing import NamedTuple

from edge_agent.sessions.links_between import links_between, missing_links
from edge_agent.sessions.open_session import OpenSession
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError
from shared.placement import Link

EVERY_SECONDS = 10.0
"""Interval of questions to the trainers while no step is done."""


class DownLink(NamedTuple):
    """A link between two trainers that is down."""

    seconds: float
    """Time since it was found down, without a step."""
    reason: str
    """A sentence that names both."""


class LinkWatch:
    """The watch over such links of one session, for the time of one task. Used on the event loop."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._down_since: dict[Link, float] = {}
        """Time at which a link was first found down, by time.monotonic."""
        self._asked_seconds = time.monotonic()

    async def look(self, *, is_missed: bool) -> DownLink | None:
        """Return the link that has been down for longest, if one is. is_missed: True if expected steps are not done; only
        then are trainers asked."""
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
        return DownLink(now_seconds - since, str(missing[link]))
