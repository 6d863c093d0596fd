"""A session in virtual time of which a worker loses all, at any packet, and begins again with nothing; and its replay."""

import asyncio
import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from shared.events.worker import Computed
from shared.execution.blocks import PlacedBlocks
from shared.execution.in_process_session import Turn
from shared.execution.step_in_flight import Parcel
from shared.execution.step_scheduler import StepScheduler
from shared.model.chain import Chain
from shared.placement import Cargo, Crossing, Placement, StepPlan, Window, first_worker, held_blocks
from shared.runtime.placement_executor import PlacementExecutor
from shared.training.held_blocks import HeldBlocks
from shared.training.recipe import Recipe
from tests.support.linked import Batches, LinkedSession
from tests.support.linking import Seconds
from tests.support.placed import CPU, chain_of, method


@dataclass
class Life:
    """A life of the worker that is lost."""

    first_step: int
    had: dict[Crossing, int] = field(default_factory=dict)
    """First step that each peer lacked when it began, by what goes there."""


def spoilt(module: nn.Module) -> Chain:
    """A chain of its own, with weights that mean nothing where they change."""
    chain = chain_of(copy.deepcopy(module))
    with torch.no_grad():
        for block in chain.blocks:
            if block.trainable:
                for value in block.named_parameters().values():
                    value.fill_(7.0)
    return chain


class LosingSession(LinkedSession):
    """All workers on one loop. One of them is lost after so many packets of any link, as often as is said."""

    def __init__(
        self,
        module: nn.Module,
        placement: Placement,
        told: Recipe,
        worker: str,
        losses: Sequence[int],
        seconds: Seconds = lambda: 0.0,
        backward: str = "replay",
    ) -> None:
        """worker: has no state. losses: after how many packets each of its lives ends, counted from the one before."""
        super().__init__(module, placement, told, backward, seconds)
        self._module = module
        self.lost = worker
        self._losses = list(losses)
        self._packets = 0
        self.lives = [Life(0)]
        self.turns: list[tuple[Turn, int]] = []
        """Turns with the number of lives until then."""
        self._is_away = asyncio.Event()
        self._linking.counted = self._count
        self._linking.dialled = self._note_position
        for name, events in self.events.items():
            events.subscribe(Computed, lambda event, name=name: self._note_turn(name, event))

    def _note_turn(self, worker: str, event: Computed) -> None:
        self.turns.append((Turn(worker, event.step, event.segment), len(self.lives)))

    def _note_position(self, near: PlacementExecutor, far: PlacementExecutor) -> None:
        """Note what a peer has of the worker, before the first stream of a life."""
        for peer, lost in ((near, far), (far, near)):
            if lost.worker == self.lost:
                awaited = peer.ends[lost.worker].position.awaited
                there = {(one.role, one.block, one.slot): one.next_step for one in awaited}
                for crossing in self.plan.between(lost.worker, peer.worker):
                    key = self.forms[peer.worker].of(crossing).first_key(0)
                    self.lives[-1].had.setdefault(crossing, there[key[1:]])

    def _count(self) -> None:
        self._packets += 1
        if self._losses and self._packets >= self._losses[0] and not self._is_away.is_set():
            self._losses.pop(0)
            self._packets = 0
            self._linking.cut(self.lost)
            self._is_away.set()

    async def train(self, batches: Batches) -> None:
        """See `LinkedSession.train`."""
        for executor in self.workers.values():
            executor.start()
        for worker in self.workers:
            self.feed(worker, batches)
        linked = [asyncio.create_task(kept) for kept in self._linking.keep_all(self.workers, self._links)]
        ended = asyncio.create_task(self.all_done(len(batches)))
        away = asyncio.create_task(self._is_away.wait())
        try:
            while not ended.done():
                running = [executor.failure for executor in self.workers.values()]
                await asyncio.wait({ended, away, *linked, *running}, return_when=asyncio.FIRST_COMPLETED)
                for task in (*linked, *running):
                    if task.done():
                        task.result()
                if away.done() and not ended.done():
                    await self._begin_again()
                    away = asyncio.create_task(self._is_away.wait())
        finally:
            for task in (*linked, ended, away):
                task.cancel()
            await asyncio.gather(*linked, ended, away, return_exceptions=True)
        for executor in self.workers.values():
            await executor.stop()

    async def _begin_again(self) -> None:
        """Have the worker begin again, with weights that mean nothing."""
        await self.workers[self.lost].stop()
        first = self.workers[first_worker(self.placement)]
        step = first.window.repeated
        self.make(self.lost, spoilt(self._module), Window(self.plan, self.lost, step, len(self.lives)))
        first.repeat(self.lost)
        self.lives.append(Life(step))
        self.workers[self.lost].start()
        self._is_away.clear()
        self._linking.mend(self.lost)


class Replay:
    """The recorded turns of such a session once more, with nothing between the workers."""

    def __init__(self, session: LosingSession, module: nn.Module, told: Recipe, backward: str = "replay") -> None:
        self._session, self._module = session, module
        self._told, self._backward = told, backward
        self._plan: StepPlan = session.plan
        self.chains: dict[str, Chain] = {}
        self._steps: dict[str, StepScheduler] = {}
        self._blocks: dict[str, PlacedBlocks] = {}
        for worker in session.workers:
            self._make(worker, chain_of(copy.deepcopy(module)), Window(self._plan, worker))
        self.lost, self._life = session.lost, 1
        self._sent: dict[int, list[Parcel]] = defaultdict(list)
        """Loads that went to the worker, by step."""
        for worker, blocks in self._blocks.items():
            for one in self._plan.between(worker, self.lost):
                if one.cargo is Cargo.WEIGHTS:
                    self._sent[-1].append(Parcel(-1, 0, one, blocks.weights(one.of_block)))

    def _make(self, worker: str, chain: Chain, window: Window) -> None:
        held = HeldBlocks(chain, self._told, CPU, held_blocks(self._session.placement, worker))
        self.chains[worker] = chain
        self._blocks[worker] = blocks = PlacedBlocks(held, self._plan, worker, method(self._backward))
        self._steps[worker] = StepScheduler(window, blocks)

    def run(self, batches: Batches) -> dict[str, Chain]:
        """Take all turns. Returns the chains of all workers."""
        begun = 0
        for turn, life in self._session.turns:
            while turn.step >= begun:
                self._begin(begun, *batches[begun])
                begun += 1
            while self._life < life:
                self._begin_again()
            work = next(one for one in self._steps[turn.worker].work_of(turn.step) if one.segment == turn.segment)
            for one in self._steps[turn.worker].run(work):
                self._send(one)
            self._steps[turn.worker].finish(work)
        return self.chains

    def _begin(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        for source in self._session.placement.sources:
            steps = self._steps[source.worker]
            for one in steps.feed(step, len(labels), (inputs.clone(),), (labels.clone(),)):
                self._send(one)
            for one in steps.begin(step):
                self._send(one)

    def _send(self, one: Parcel) -> None:
        crossing = one.crossing
        if crossing.receiver == self.lost:
            self._sent[one.step].append(one)
        if crossing.sender == self.lost:
            lives, number = self._session.lives, self._life
            is_repeated = one.step < lives[number - 1].had[crossing]
            comes_later = number < len(lives) and one.step >= lives[number].had[crossing]
            if is_repeated or comes_later:
                return
        self._steps[crossing.receiver].deliver_sent(one)

    def _begin_again(self) -> None:
        first = self._session.lives[self._life].first_step
        self._make(self.lost, spoilt(self._module), Window(self._plan, self.lost, first, self._life))
        self._life += 1
        for step in sorted(self._sent):
            for one in self._sent[step]:
                if step >= first - (one.crossing.cargo is Cargo.WEIGHTS):
                    self._steps[self.lost].deliver_sent(one)
