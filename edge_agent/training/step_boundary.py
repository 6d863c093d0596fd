"""Step boundaries: moments with nothing in flight, which operators, checkpoints, moves of blocks and a stop ask for."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepBoundary:
    """The request for the next one, which anybody makes and the run fulfils. Used on the event loop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._on_request: Callable[[], object] | None = None

    @property
    def requested(self) -> bool:
        """Whether the batch that starts next is to be the last before the boundary."""
        return self._requested.is_set()

    def request(self) -> None:
        """Have the run reach one as soon as it can."""
        self._requested.set()
        if self._on_request is not None:
            self._on_request()

    @contextmanager
    def heard_by(self, on_request: Callable[[], object]) -> Iterator[None]:
        """Have a request told at once while the body runs, before anything else can begin."""
        self._on_request = on_request
        try:
            yield
        finally:
            self._on_request = None

    def clear_request(self) -> None:
        """Forget the request: the run is at a boundary, and turns now to whatever waits for one."""
        self._requested.clear()

    async def wait_for_request(self) -> None:
        """Wait until somebody requests one."""
        await self._requested.wait()
