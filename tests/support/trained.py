"""A model and its data, to be trained under many placements from the same first weights."""

import copy
import functools
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shared.model.build import choose_output
from shared.model.chain import Chain, build_chain
from shared.model.inputs import Inputs, with_length
from shared.model.random_state import random_state
from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.training.losses import BatchLabels, label_tensors
from shared.training.recipe import OptimizerConfig, Recipe, ScheduleConfig
from tests.support.placed import LooseSession, in_process, state_of
from tests.support.plain import plain_loop

BATCH, MOST_STEPS = 4, 30
"""Samples of a batch, and steps of the longest training."""
Batch = tuple[Inputs, BatchLabels]
State = dict[str, Tensor]


class Task(NamedTuple):
    """A model and its data."""

    model: Callable[[], nn.Module]
    draw: Callable[[], Batch]
    """Inputs and labels of a batch."""
    loss: str = "cross_entropy"
    output: str | None = None
    """The entry to train on, as `model.output` names it."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=0.05, momentum=0.9, clip_norm=1.0)
    longest: int | None = None
    """The greatest length of a batch, where batches differ in it."""


class Trained:
    """A task that is trained again and again from the same first weights."""

    def __init__(self, task: Task, dtype: torch.dtype = torch.float32) -> None:
        self.task = task
        with random_state("task"):
            self.module = task.model().to(dtype).train()
            self.batches = [task.draw() for _ in range(MOST_STEPS)]
        if task.output is not None:
            choose_output(self.module, task.output)
        self._chains: dict[str, Chain] = {}
        self.chain = self.built()
        self.plain = functools.cache(self._plain)

    def built(self, worker: str = AGENT) -> Chain:
        """Return a worker's own chain, with the first weights."""
        if worker not in self._chains:
            example, longest = self.batches[0][0], self.task.longest
            self._chains[worker] = build_chain(
                copy.deepcopy(self.module),
                example if longest is None else with_length(example, longest),
                length_varies=longest is not None,
            )
        self._chains[worker].module.load_state_dict(self.module.state_dict())
        return self._chains[worker]

    def recipe(self) -> Recipe:
        return Recipe(
            optimizer=self.task.optimizer,
            schedule=ScheduleConfig(),
            loss=self.task.loss,
            seed=3,
            steps_per_epoch=MOST_STEPS,
            total_steps=MOST_STEPS,
            label_tensors=len(label_tensors(self.batches[0][1])),
        )

    def _plain(self, steps: int) -> State:
        batches = ((step, *batch) for step, batch in enumerate(self.batches[:steps]))
        return plain_loop(self.built(), self.recipe(), batches)

    def placed(self, placement: Placement, steps: int) -> State:
        chains = {worker: self.built(worker) for worker in placement.workers}
        in_process(chains, placement, self.recipe()).train(0, steps, iter(self.batches))
        return self.joined(chains, placement)

    def joined(self, chains: dict[str, Chain], placement: Placement) -> State:
        whole = chains[placement.workers[0]].module
        whole.load_state_dict(state_of(chains, placement), strict=False)
        return {name: value.clone() for name, value in whole.state_dict().items()}

    def late_and_replayed(self, placement: Placement, backward: str, seed: int, steps: int) -> tuple[State, State]:
        """Train in an order that dice decide, and once more in that order."""
        example = self.batches[0][0]
        loose = LooseSession(
            self.module,
            placement,
            self.recipe(),
            backward,
            random.Random(seed),
            lambda module: build_chain(module, example),
        )
        loose.train(self.batches[:steps])
        chains = {worker: self.built(worker) for worker in placement.workers}
        in_process(chains, placement, self.recipe(), backward).replay(loose.turns, iter(self.batches))
        return self.joined(loose.chains, placement), self.joined(chains, placement)

    def placements(self) -> Iterator[Placement]:
        """Every cut, labels that stay, and chains of three; none that parts blocks with one weight."""
        count = len(self.chain.blocks)
        parts: list[dict[str, list[range]]] = []
        for cut in range(1, count):
            parts.append({"edge": [range(cut)], "near": [range(cut, count)]})
            for second in range(cut + 1, count):
                between, rest = range(cut, second), range(second, count)
                parts.append({"edge": [range(cut), rest], "near": [between]})
                parts.append({"edge": [range(cut)], "near": [between], "far": [rest]})
                parts += [
                    {
                        "edge": [range(cut)],
                        "near": [range(cut, second), range(third, count)],
                        "far": [range(second, third)],
                    }
                    for third in range(second + 1, count)
                ]
        for workers in parts:
            held = [{block for blocks in ranges for block in blocks} for ranges in workers.values()]
            if all(any(blocks.issuperset(group) for blocks in held) for group in self.chain.together):
                yield placement_of(workers, count)


def placement_of(workers: dict[str, list[range]], blocks: int, staleness: int = 0) -> Placement:
    whole = Rows(0, BATCH)
    tiles = [Tile(name, each.start, each.stop, whole) for name, ranges in workers.items() for each in ranges]
    return Placement(0, blocks, BATCH, tuple(workers), tuple(tiles), (Source(AGENT, whole),), staleness=staleness)
