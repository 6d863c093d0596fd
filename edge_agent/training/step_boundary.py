"""Step boundaries: moments with nothing in flight. Operators, checkpoints, moves of blocks and a stop request them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepBoundary:
    """The request for the next boundary: any part may make it, and the run fulfils it. Used on the event loop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._at_request: list[Callable[[], object]] = []

    @property
    def requested(self) -> bool:
        """Tell whether the next batch is the last before the boundary."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request a boundary as soon as possible."""
        self._requested.set()
        for stop_feeding in self._at_request:
            stop_feeding()

    @contextmanager
    def stopping(self, stop_feeding: Callable[[], object]) -> Iterator[None]:
        """Have a request stop the feeding of batches at once while the body runs, before other work can begin."""
        self._at_request.append(stop_feeding)
        try:
            yield
        finally:
            self._at_request.remove(stop_feeding)

    def clear_request(self) -> None:
        """Forget the request. The run is at a boundary, and now serves all work that waits for one."""
        self._requested.clear()

    async def wait_for_request(self) -> None:
        """Wait until a boundary is requested."""
        await self._requested.wait()
