"""Fetches batches ahead of the compute thread, on the loader's thread, and gives their labels the type that travels.

Small batches that are only copied from memory are fetched when they are asked for: that takes less time than to wake a thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Self

from edge_agent.data import Batch
from shared.concurrency.threads import Worker
from shared.runtime.computing import Samples
from shared.training.losses import narrowed

MOST_READY = 2
"""At most so many batches are ready."""


class Prefetcher:
    """The batches of `source`, in order, with narrowed labels. Made on the event loop; fetches until it is left."""

    def __init__(
        self, source: Generator[Batch], worker: Worker, on_ready: Callable[[], None], *, at_once: bool = False
    ) -> None:
        """source: read on `worker`, and closed there at the end. on_ready: called there whenever a batch is ready.

        at_once: read where a batch is taken instead, and none ahead; the source must not fail then.
        """
        self._source = source
        self._worker = worker
        self._on_ready = on_ready
        self._ready: deque[Samples] = deque()
        self._is_left = False
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Ends with what the first batch that cannot be read fails with, a DataError."""
        self._at_once = at_once
        self._is_filling = not at_once
        if not at_once:
            worker.send(self._fill)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop fetching, and close the source."""
        self._is_left = True
        self.failure.cancel()
        await self._worker.run(self._source.close)

    def __len__(self) -> int:
        """How many batches are ready."""
        return len(self._ready)

    def take(self) -> Samples | None:
        """The next batch; None while none is ready. Called on any thread, by one at a time."""
        if self._at_once:
            return self._read()
        if not self._ready:
            return None
        batch = self._ready.popleft()
        if not self._is_filling:
            self._is_filling = True
            self._worker.send(self._fill)
        return batch

    def _fill(self) -> None:
        """On the loader's thread: read until there is no room. At the end of the source, this is not called again."""
        while not self._is_left and len(self._ready) < MOST_READY:
            try:
                batch = self._read()
            except Exception as failure:
                self._loop.call_soon_threadsafe(self._fail, failure)
                return
            if batch is None:
                return
            self._ready.append(batch)
            self._on_ready()
            if len(self._ready) == MOST_READY:
                self._is_filling = False  # whoever takes one now has more read; one that was taken before is read here

    def _read(self) -> Samples | None:
        batch = next(self._source, None)
        return None if batch is None else Samples(len(batch.labels), (batch.inputs,), narrowed(batch.labels))

    def _fail(self, failure: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(failure)
