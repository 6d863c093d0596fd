"""Step boundaries: moments with nothing in flight, which operators, checkpoints, moves of the cut and a stop ask for."""

import asyncio


class StepBoundary:
    """The request for the next one, which anybody makes and the run fulfils. Used on the event loop."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()

    @property
    def requested(self) -> bool:
        """Whether the batch that starts next is to be the last before the boundary."""
        return self._requested.is_set()

    def request(self) -> None:
        """Have the run reach one as soon as it can."""
        self._requested.set()

    def clear_request(self) -> None:
        """Forget the request: the run is at a boundary, and whatever waited for one is done now."""
        self._requested.clear()

    async def wait_for_request(self) -> None:
        """Wait until somebody requests one."""
        await self._requested.wait()
