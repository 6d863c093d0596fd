"""Silence: which trainers do not answer, and since when.

Each is asked itself: where another trainer has dialled it, the links of this device show nothing.
"""

import asyncio
import time
from collections.abc import Collection

from edge_agent.sessions.joining import OTHERS_SECONDS
from edge_agent.sessions.membership import Membership
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError, UnreachableError


class Silence:
    """The questions to the trainers of one session, whether they are there. Used on the event loop."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._asking: dict[str, asyncio.Task[None]] = {}
        """Questions that may not be answered yet, by trainer."""
        self._since: dict[str, float] = {}
        """Time of the first question that a trainer has not answered, by time.monotonic."""

    async def ask(self, names: Collection[str]) -> dict[str, float]:
        """Ask members whether they are there, and return for how many seconds each has not answered, of those that have not.

        Waits for answers for `OTHERS_SECONDS`; a question stays open after that. One that answers, and has left other calls
        unanswered, is silent since these.
        """
        for name in names:
            if name not in self._asking:
                self._asking[name] = asyncio.create_task(self._ask(name, self._members[name].client))
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=OTHERS_SECONDS)
        for name, asking in [*self._asking.items()]:
            if asking.done():
                del self._asking[name]
                asking.result()  # a defect
        now_seconds = time.monotonic()
        return {name: now_seconds - since for name, since in self._since.items() if name in names}

    async def _ask(self, name: str, client: TrainerClient) -> None:
        self._since.setdefault(name, time.monotonic())
        try:
            await client.check_serving()
        except UnreachableError:
            return
        except IsthmusError:  # Any answer shows that it is there.
            pass
        if (unanswered_since := client.unanswered_since) is None:
            self._since.pop(name, None)
        else:
            self._since[name] = unanswered_since

    def end(self) -> None:
        """Close the questions. What was not answered until now counts on."""
        for asking in self._asking.values():
            asking.cancel()
        self._asking.clear()

    def forget(self, but: Collection[str] = ()) -> None:
        """Count from the next question on. but: trainers for which this is not so."""
        self._since = {name: since for name, since in self._since.items() if name in but}
