"""A moment with nothing in flight, and who wants one: an operator, a checkpoint, a move of blocks, a trainer that stops."""

import asyncio


class StepBoundary:
    """Used on the event loop, by everyone who wants one and by the run, which brings it about."""

    def __init__(self) -> None:
        self._wanted = asyncio.Event()

    @property
    def wanted(self) -> bool:
        """Whether the batch that starts next is to be the last before the boundary."""
        return self._wanted.is_set()

    def request(self) -> None:
        """Have the run come to one as soon as it can."""
        self._wanted.set()

    def clear_request(self) -> None:
        """The run stands at a boundary: what was wanted is done now, so nothing asks for another one."""
        self._wanted.clear()

    async def wait_for_request(self) -> None:
        """Wait until somebody wants one."""
        await self._wanted.wait()
