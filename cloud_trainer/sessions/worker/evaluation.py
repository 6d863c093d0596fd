"""An evaluation that a worker takes part in."""

import asyncio

from shared.runtime.worker_run import WorkerRun


class Evaluation:
    """From its beginning to its end. Used on the event loop."""

    def __init__(self, number: int, run: WorkerRun) -> None:
        """run: computes already."""
        self.number = number
        self.run = run
        self._ended = asyncio.Event()

    async def end(self) -> None:
        """Compute no more; repeating it changes nothing."""
        self._ended.set()
        await self.run.stop()

    async def wait_until_ended(self) -> None:
        """Wait until somebody ends it."""
        await self._ended.wait()
