"""Links between trainers that stay down although both trainers answer: no other process would report them."""

import time

from edge_agent.sessions.links_between import links_between, missing_links
from edge_agent.sessions.open_session import OpenSession
from shared.concurrency.tasks import gathered
from shared.errors import IsthmusError, UnreachableError
from shared.placement import Link

EVERY_SECONDS = 10.0
"""Interval of questions to the trainers while no step is done."""
LONGEST_SECONDS = 120.0
"""Longest time without a step for which a link may be down between trainers that answer. A network reroutes in less."""


class LinkWatch:
    """The watch over such links of one session, for the time of one task. Used on the event loop."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._down_since: dict[Link, float] = {}
        """Time at which a link was first found down, by time.monotonic."""
        self._asked_seconds = time.monotonic()

    async def look(self, *, is_missed: bool) -> UnreachableError | None:
        """Return the error that ends the run, if there is one. is_missed: True if expected steps are not done; only
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
        for link, since in self._down_since.items():
            if now_seconds - since >= LONGEST_SECONDS:
                return UnreachableError(f"{missing[link]}; no step was done for {now_seconds - since:.0f} s")
        return None
