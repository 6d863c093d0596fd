"""Step boundaries: moments with nothing in flight. Operators, checkpoints, moves of blocks and a stop request them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepBoundary:
    """The request for the next boundary: any part may make it, and the run fulfils it. Used on the event loop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._on_request: Callable[[], object] | None = None

    @property
    def requested(self) -> bool:
        """Tell whether the next batch is the last before the boundary."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request a boundary as soon as possible."""
        self._requested.set()
        if self._on_request is not None:
            self._on_request()

    @contextmanager
    def heard_by(self, on_request: Callable[[], object]) -> Iterator[None]:
        """Report a request at once while the body runs, before other work can begin."""
        self._on_request = on_request
        try:
            yield
        finally:
            self._on_request = None

    def clear_request(self) -> None:
        """Forget the request. The run is at a boundary, and now serves all work that waits for one."""
        self._requested.clear()

    async def wait_for_request(self) -> None:
        """Wait until a boundary is requested."""
        await self._requested.wait()
