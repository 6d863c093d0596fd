"""The loads that have come to a worker and wait for the thread that computes."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence

from shared.execution.step_in_flight import Parcel
from shared.placement import Crossing


class LoadQueue:
    """The loads by the segment that needs them: the thread gets those of one segment together, once all have come.

    So no load wakes the thread before it can be computed with. The window of the worker bounds the queue: a load that
    comes too early is refused. Used on the event loop, but for `take`.
    """

    def __init__(self, arriving: Sequence[Sequence[Crossing]], changed: asyncio.Event) -> None:
        """arriving: the crossings that come in every step, by the segment that needs them.

        changed: set when any load can be taken.
        """
        self._counts = [len(crossings) for crossings in arriving]
        self._segments = {one: segment for segment, crossings in enumerate(arriving) for one in crossings}
        self._changed = changed
        self._coming: dict[tuple[int, int], list[Parcel]] = defaultdict(list)
        """The loads of which others of the same segment are missing, by step and segment."""
        self._ready: deque[Parcel] = deque()
        self._unused: dict[int, int] = defaultdict(int)
        """Number of loads that have come for a step and are not known to be used."""

    @property
    def is_ready(self) -> bool:
        """Tell whether there is anything to take."""
        return bool(self._ready)

    @property
    def stop(self) -> int:
        """Return the step after the last for which something has come that is not known to be used."""
        return max(self._unused, default=-1) + 1

    @property
    def waiting(self) -> int:
        """Count the steps for which something has come that is not known to be used."""
        return len(self._unused)

    def put(self, arrived: Parcel) -> None:
        """Add a load."""
        self._unused[arrived.step] += 1
        segment = self._segments[arrived.crossing]
        if self._counts[segment] > 1:
            coming = self._coming[arrived.step, segment]
            coming.append(arrived)
            if len(coming) < self._counts[segment]:
                return
            self._ready.extend(self._coming.pop((arrived.step, segment)))
        else:
            self._ready.append(arrived)
        self._changed.set()

    def take(self) -> Parcel | None:
        """Take the next load that can be used, if there is any. On the thread that computes."""
        return self._ready.popleft() if self._ready else None

    def note_used(self, step: int, segment: int) -> None:
        """Forget the loads of a segment that was computed."""
        if count := self._counts[segment]:
            self._unused[step] -= count
            if not self._unused[step]:
                del self._unused[step]
