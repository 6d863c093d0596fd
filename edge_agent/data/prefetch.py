"""Batches fetched ahead of the computation, on the loader's thread, for as long as a run trains."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Self

from edge_agent.data import Batch
from shared.concurrency.threads import Worker
from shared.training.losses import narrowed

PREFETCHED = 2
"""Batches that are ready at most; the worker may hold one more, which waits for room."""


class Prefetcher:
    """The batches of steps [first, last), in order, a few of them ready at any time, with labels as they travel.

    A dataset's error is raised where its batch would have been taken.
    """

    def __init__(self, source: Generator[Batch], worker: Worker, on_ready: Callable[[], None]) -> None:
        """on_ready: called when a batch has become ready."""
        self._source = source
        self._worker = worker
        self._ready: asyncio.Queue[Batch | Exception] = asyncio.Queue(PREFETCHED)
        self._on_ready = on_ready

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._fetch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop fetching, and end the source."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._worker.run(self._source.close)

    def __len__(self) -> int:
        """How many are ready."""
        return self._ready.qsize()

    @property
    def empty(self) -> bool:
        """Whether none is ready."""
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
