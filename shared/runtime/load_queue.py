"""The loads that have come to a worker and wait for the thread that computes."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence

from shared.execution.step_in_flight import Parcel


class LoadQueue:
    """The loads by the segment that needs them: the thread gets those of one segment together, once all have come.

    So no load wakes the thread before it can be computed with. The window of the worker bounds the queue: a load that
    comes too early is refused. Used on the event loop, but for `ready`.
    """

    def __init__(self, counts: Sequence[int], needed_by: Sequence[int], changed: asyncio.Event) -> None:
        """counts: of the loads that come in every step, by the segment that needs them. needed_by: these segments, by the
        load's place.

        changed: set when any load can be taken.
        """
        self._counts = counts
        self._needed_by = needed_by
        self._changed = changed
        self._coming: dict[tuple[int, int], list[Parcel]] = defaultdict(list)
        """The loads of which others of the same segment are missing, by step and segment."""
        self.ready: deque[Parcel] = deque()
        """The loads that can be used, which the thread takes from the left."""
        self._unused: dict[int, int] = defaultdict(int)
        """Number of loads that have come for a step and are not known to be used."""

    @property
    def stop(self) -> int:
        """Return the step after the last for which something has come that is not known to be used."""
        return max(self._unused, default=-1) + 1

    @property
    def waiting(self) -> int:
        """Count the steps for which something has come that is not known to be used."""
        return len(self._unused)

    def put(self, parcel: Parcel) -> None:
        """Add a load, which has a place."""
        segment = self._needed_by[parcel.place]
        self._unused[parcel.step] += 1
        if self._counts[segment] > 1:
            coming = self._coming[parcel.step, segment]
            coming.append(parcel)
            if len(coming) < self._counts[segment]:
                return
            self.ready.extend(self._coming.pop((parcel.step, segment)))
        else:
            self.ready.append(parcel)
        self._changed.set()

    def note_used(self, step: int, segment: int) -> None:
        """Forget the loads of a segment that was computed."""
        if count := self._counts[segment]:
            self._unused[step] -= count
            if not self._unused[step]:
                del self._unused[step]
