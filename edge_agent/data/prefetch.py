"""Fetches batches ahead of the compute thread, on the loader's thread, and gives their labels the type that travels."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Self

from edge_agent.data import Batch
from shared.concurrency.threads import Worker
from shared.training.losses import narrowed

MOST_READY = 2
"""At most so many batches are ready; the loader's thread may have fetched one more, which waits for room."""


class Prefetcher:
    """The batches of `source`, in order, with narrowed labels. Made on the event loop; fetches until it is left.

    The error of a batch that cannot be read is raised where the batch would have been taken.
    """

    def __init__(self, source: Generator[Batch], worker: Worker, on_ready: Callable[[], None]) -> None:
        """source: read on `worker`, and closed there at the end. on_ready: called whenever a batch, or its error, is ready."""
        self._source = source
        self._worker = worker
        self._ready: asyncio.Queue[Batch | Exception] = asyncio.Queue(MOST_READY)
        self._on_ready = on_ready
        self._fetching = asyncio.create_task(self._fetch())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop fetching, and close the source."""
        self._fetching.cancel()
        with suppress(asyncio.CancelledError):
            await self._fetching
        await self._worker.run(self._source.close)

    def __len__(self) -> int:
        """How many batches are ready."""
        return self._ready.qsize()

    @property
    def empty(self) -> bool:
        """Whether no batch is ready."""
        return self._ready.empty()

    def take(self) -> Batch:
        """The next batch, which must be ready. Raises DataError when it could not be read."""
        batch = self._ready.get_nowait()
        if isinstance(batch, Exception):
            raise batch
        return batch

    async def _fetch(self) -> None:
        batch: Batch | Exception | None
        while True:
            try:
                batch = await self._worker.run(self._read)
            except Exception as failure:
                batch = failure
            if batch is None:
                return
            await self._ready.put(batch)
            self._on_ready()
            if isinstance(batch, Exception):
                return

    def _read(self) -> Batch | None:
        batch = next(self._source, None)
        return None if batch is None else replace(batch, labels=narrowed(batch.labels))
