"""Fetches batches ahead of the compute thread, on the loader's thread, and gives their labels the type that travels.

Batches that are read quicker than they are handed to another thread are read on the compute thread instead.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from statistics import median
from typing import Self

from edge_agent.data import Batch, Reading
from shared.concurrency.threads import WorkerThread
from shared.runtime.compute_loop import Samples
from shared.training.losses import label_tensors, narrowed

MOST_READY = 2
"""At most so many batches are ready."""
QUICK_SECONDS, QUICK_SHARE, MOST_SECONDS = 0.0003, 0.1, 0.05
"""Bounds on the time of a batch that is read on the compute thread. The usual processor time before that is tried is at most
these seconds or this share of a step. The last bounds every single batch then."""
SLACK = 2
"""Factor by which all time that a batch usually takes there may exceed those bounds, since others use the processors too.
Without it, chance would choose the thread where a batch takes about as long as allowed, and with it a step's wake-ups."""
LONG_SECONDS = 0.001
"""Reading that takes longer is worth half as much processor time, so that others hear first of finished work."""
TRIED = 8
"""Number of batches whose median is their usual time."""
PATIENCE = 16
"""Factor by which more batches are read ahead each time before the compute thread is tried again."""


class Prefetcher:
    """The batches of `source`, in order, with narrowed labels. Made on the event loop; fetches until it is left."""

    def __init__(
        self, source: Generator[Batch], thread: WorkerThread, note_ready: Callable[[], None], reading: Reading
    ) -> None:
        """source: read on `thread` or on the compute thread, and closed on `thread` at the end. note_ready: called on
        `thread` whenever it has read a batch."""
        self._source = source
        self._thread = thread
        self._note_ready = note_ready
        self._ready: deque[Samples] = deque()
        self._is_left = self._is_over = False
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Ends with the error of the first batch that cannot be read, a DataError."""
        self._one_reads = threading.Lock()
        self._at_once = reading is Reading.AT_ONCE
        self._may_change = reading is Reading.AS_IT_SHOWS
        self._reads_ahead = self._untried = TRIED
        """Number of batches to be read ahead before the compute thread is tried, and of those that are left of them."""
        self._costs: deque[float] = deque(maxlen=TRIED)
        """Seconds that count of the last batches that were read where they are read now."""
        self._taken: deque[float] = deque(maxlen=TRIED + 1)
        """Times by time.monotonic at which the last batches were taken."""
        self._read_seconds = 0.0
        """Seconds that the last batch took that was read on the compute thread."""
        self._making_room = threading.Lock()
        """Held while a batch is taken, and while the loader's thread looks for room: neither sees half of the other."""
        self._is_filling = not self._at_once
        if not self._at_once:
            thread.send(self._fill)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop fetching, and close the source."""
        self._is_left = True
        self.failure.cancel()
        await self._thread.run(self._close)

    def __len__(self) -> int:
        """Return the number of ready batches."""
        return len(self._ready)

    @property
    def holds_one(self) -> bool:
        """See `BatchSource`."""
        return bool(self._ready)

    @property
    def is_ready(self) -> bool:
        """See `BatchSource`."""
        return bool(self._ready) or self._reads_now

    @property
    def reads_long(self) -> bool:
        """See `BatchSource`."""
        return self._read_seconds > LONG_SECONDS and self._reads_now

    @property
    def _reads_now(self) -> bool:
        return self._at_once and not self._ready and not self._is_over

    def make_ready(self) -> bool:
        """See `BatchSource`."""
        if self._reads_now:
            began = time.monotonic()
            self._read()
            self._read_seconds = time.monotonic() - began
            self._judge(self._read_seconds)
        return bool(self._ready)

    def take(self) -> Samples:
        """See `BatchSource`."""
        with self._making_room:
            batch = self._ready.popleft()
            begins_to_fill = not (self._at_once or self._is_filling)
            self._is_filling = self._is_filling or begins_to_fill
        if self._may_change:
            self._taken.append(time.monotonic())
        if begins_to_fill:
            self._thread.send(self._fill)
        return batch

    def _fill(self) -> None:
        """On the loader's thread: read until there is no room. At the end of the source, this is not called again."""
        while self._has_room():
            began = time.thread_time()
            self._read()
            if self._is_over:
                return
            self._judge(time.thread_time() - began)
            self._note_ready()

    def _has_room(self) -> bool:
        """Tell whether the loader's thread is to read another batch. If not, the taker of the next one begins that again."""
        with self._making_room:
            self._is_filling = not self._at_once and len(self._ready) < MOST_READY
            return self._is_filling

    def _read(self) -> None:
        with self._one_reads:
            if self._is_left or self._is_over:
                self._is_over = True
                return
            try:
                batch = next(self._source, None)
                if batch is not None:
                    labels = tuple(map(narrowed, label_tensors(batch.labels)))
                    self._ready.append(Samples(len(labels[0]), batch.features, labels, batch.numbers, batch.counts))
                    return
            except Exception as failure:
                self._loop.call_soon_threadsafe(self._fail, failure)
            self._is_over = True

    def _judge(self, seconds: float) -> None:
        """Choose the cheaper thread for reading from now on."""
        if not self._may_change:
            return
        self._costs.append(seconds)
        step_seconds = (self._taken[-1] - self._taken[0]) / TRIED if len(self._taken) > TRIED else 0.0
        bound = max(QUICK_SECONDS, QUICK_SHARE * step_seconds)
        usual = median(self._costs) if len(self._costs) == TRIED else 0.0
        if self._at_once:
            changes = seconds > MOST_SECONDS or usual > SLACK * bound
        else:
            self._untried -= 1
            changes = self._untried <= 0 and usual <= bound
        if changes:
            self._at_once = not self._at_once
            self._costs.clear()
            if not self._at_once:
                self._reads_ahead *= PATIENCE
                self._untried = self._reads_ahead

    def _close(self) -> None:
        with self._one_reads:
            self._source.close()

    def _fail(self, failure: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(failure)
