"""A session of any placement in virtual time: production links between its workers, that may be lost at any packet."""

import asyncio
import copy
from collections import defaultdict
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from shared.codec import aligned_buffer
from shared.concurrency.tasks import run_together
from shared.concurrency.threads import Runner
from shared.errors import UnreachableError
from shared.execution.model_facts import facts_of
from shared.placement import Placement, held_blocks, links
from shared.runtime.crossing_wire import CrossingWire
from shared.runtime.link_end import LinkEnd, LinkStream
from shared.runtime.worker_listener import WorkerListener
from shared.runtime.worker_run import Threads, WorkerRun
from shared.training.held_blocks import HeldBlocks
from shared.training.recipe import Recipe
from shared.transport.stream.channel import PacketChannel, loopback
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import Assembler
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, StepDone
from tests.support.placed import CPU, WatchedBlocks, chain_of, method
from tests.support.virtual import InlineWorker, Wire

CHUNK_BYTES = 256
"""A feature takes several packets, so that a link can be lost in the middle of it."""
Seconds = Callable[[], float]
Channel = PacketChannel[LinkMessage, LinkMessage]


class LinkedSession:
    """All workers on one loop, over links that take no time or over wires."""

    def __init__(
        self,
        module: nn.Module,
        placement: Placement,
        told: Recipe,
        backward: str = "replay",
        seconds: Seconds = lambda: 0.0,
        losses: Sequence[int] = (),
        computing: Callable[[str], Runner] | None = None,
        wires: Callable[[str, str], Wire] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """seconds: before and after each call, and before each packet. losses: after how many packets each stream is lost, one
        after the other; then none is. computing: where a worker computes, in place of calls that take `seconds`. wires: by the
        sender and the receiver.
        """
        self.chains = {worker: chain_of(copy.deepcopy(module)) for worker in placement.workers}
        self.placement = placement
        self._seconds = seconds
        self._losses = iter(losses)
        self._wires = wires
        self._chunk_bytes = chunk_bytes
        self.streams = 0
        self.done: dict[int, list[StepDone]] = defaultdict(list)
        """What the first worker has heard of each step."""
        self.done_seconds: list[float] = []
        """When that was of all workers, by step: moments of the loop."""
        self._changed = asyncio.Event()
        model = facts_of(next(iter(self.chains.values())))
        how = method(backward)
        self.workers: dict[str, WorkerRun] = {}
        self.blocks: dict[str, WatchedBlocks] = {}
        for worker in placement.workers:
            if not held_blocks(placement, worker) and not any(one.worker == worker for one in placement.sources):
                continue
            chain = self.chains[worker]
            held = HeldBlocks(chain, told, CPU, held_blocks(placement, worker))
            self.blocks[worker] = blocks = WatchedBlocks(held, placement, model, worker, how)
            wire = CrossingWire(placement, chain, told.optimizer, lambda _labels: None)
            compute = InlineWorker(seconds) if computing is None else computing(worker)
            threads = Threads(compute, InlineWorker(seconds))
            listener = _Listener(self._hear) if not self.workers else WorkerListener()
            self.workers[worker] = WorkerRun(wire, model, blocks, threads, listener)
        self._links = [
            (self.workers[link.dialer].links[link.listener], self.workers[link.listener].links[link.dialer])
            for link in links(placement, model)
        ]

    async def train(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """All batches, until every worker has done them."""
        working = [asyncio.create_task(worker.run()) for worker in self.workers.values()]
        working += [asyncio.create_task(self._keep_linked(near, far)) for near, far in self._links]
        feeding = [asyncio.create_task(self.feed(worker, batches)) for worker in self._sources()]
        ended = asyncio.create_task(self.all_done(len(batches)))
        try:
            await asyncio.wait({ended, *working}, return_when=asyncio.FIRST_COMPLETED)
            for task in working:
                if task.done():
                    task.result()
            await ended
        finally:
            for task in (*working, *feeding, ended):
                task.cancel()
            await asyncio.gather(*working, *feeding, ended, return_exceptions=True)

    def _sources(self) -> list[str]:
        return [source.worker for source in self.placement.sources]

    async def feed(self, worker: str, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Begin all batches at a worker, which computes."""
        whole = next(source.rows for source in self.placement.sources if source.worker == worker)
        run = self.workers[worker]
        for step, (inputs, labels) in enumerate(batches):
            rows = whole.scaled(len(labels), self.placement.batch_size)
            mine = slice(rows.begin, rows.end)
            await run.begin(step, len(labels), (inputs[mine].clone(),), labels[mine].clone())

    async def _keep_linked(self, near: LinkEnd, far: LinkEnd) -> None:
        while True:
            lost = asyncio.Event()
            here, there = self._channels(near, far)
            left = next(self._losses, None)
            self.streams += 1
            ends = [end.run(self._stream(end, channel, lost, left)) for end, channel in ((near, here), (far, there))]
            try:
                await run_together(*ends)
            except UnreachableError:
                continue

    def _channels(self, near: LinkEnd, far: LinkEnd) -> tuple[Channel, Channel]:
        if self._wires is None:
            return loopback()
        up, down = self._wires(far.peer, near.peer), self._wires(near.peer, far.peer)
        return PacketChannel(down.read, up.write), PacketChannel(up.read, down.write)

    def _stream(self, end: LinkEnd, channel: Channel, lost: asyncio.Event, left: int | None) -> LinkStream:
        async def survive(work):
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    lost.set()
            doing, losing = asyncio.ensure_future(work), asyncio.ensure_future(lost.wait())
            try:
                await asyncio.wait({doing, losing}, return_when=asyncio.FIRST_COMPLETED)
                if lost.is_set():
                    raise UnreachableError("the link was lost")
                return doing.result()
            finally:
                for task in (doing, losing):
                    task.cancel()

        async def write(packet):
            await asyncio.sleep(self._seconds())
            await survive(channel.write(packet))

        return Duplex(
            LinkMessage,
            PacketChannel(lambda: survive(channel.read()), write),
            Assembler(end.accept, aligned_buffer),
            self._chunk_bytes,
            1 << 20,
            lambda *_: None,
        )

    def _hear(self, done: StepDone) -> None:
        self.done[done.step].append(done)
        if len(self.done[done.step]) == len(self.workers):
            self.done_seconds.append(asyncio.get_running_loop().time())
        self._changed.set()

    async def all_done(self, steps: int) -> None:
        """Wait until the first worker has heard that every worker has done so many steps."""
        while any(len(self.done[step]) < len(self.workers) for step in range(steps)):
            self._changed.clear()
            await self._changed.wait()


class _Listener(WorkerListener):
    def __init__(self, hear: Callable[[StepDone], None]) -> None:
        self.step_done = hear
