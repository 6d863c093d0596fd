"""Every kind of placement with every model and optimizer: without staleness and codecs, the bits equal one process's.

tests/integration/placements/test_every_kind.py does this over sockets, with some of each.
"""

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from edge_agent.data import BatchLoader
from edge_agent.data.named import load_dataset
from shared.model.build import build_model
from shared.model.chain import Chain, build_chain
from shared.placement import AGENT, Placement, Rows, Source, Tile, parse_placement, parse_range
from shared.training.recipe import Recipe
from tests.support.crossed import crossed
from tests.support.experiments import MODELS, OPTIMIZERS, flags
from tests.support.placed import in_process, state_of
from tests.support.placement_kinds import BATCH_SIZE as WRITTEN_SIZE
from tests.support.placement_kinds import RANGES, SHARED
from tests.support.plain import assert_same_bits, plain_loop
from tests.support.plain_tiles import plain_tiles
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCKS, BATCH_SIZE = 4, 16
SAMPLES = (BATCH_SIZE, 11, BATCH_SIZE)
"""Samples of each batch. One is shorter, as at the end of an epoch."""
CUTS = {
    "edge only": {AGENT: ["0:"]},
    "behind the first block": {AGENT: ["0:1"], "near": ["1:"]},
    "before the last block": {AGENT: ["0:3"], "near": ["3:"]},
}
"""Cuts besides the one in the middle, which is among the ranges."""
State = dict[str, Tensor]


@functools.cache
def recipe(optimizer: str) -> Recipe:
    """Return the recipe: the optimizer and its settings."""
    training = edge_config(*flags("mlp", optimizer)).training
    told = {name: getattr(training, name) for name in ("optimizer", "schedule", "loss", "seed")}
    return Recipe(**told, steps_per_epoch=len(SAMPLES), total_steps=30)


class Trained:
    """A model that is trained on the same few batches again and again, always from its first weights."""

    def __init__(self, model: str) -> None:
        config = edge_config(*flags(model, "sgd"))
        dataset = load_dataset(config.data.train.factory, config.data.train.kwargs)
        loader = BatchLoader(dataset, BATCH_SIZE, config.training.seed, drop_last=True, workers=0)
        whole = loader.iterate(0, len(SAMPLES))
        self._batches = [(batch.inputs[:n], batch.labels[:n]) for batch, n in zip(whole, SAMPLES, strict=True)]
        self._module = build_model(config.model.factory, config.model.kwargs, config.training.seed).train()
        self._chains: dict[str, Chain] = {}
        self._by_the_plain_loop: dict[str, State] = {}

    def by_the_plain_loop(self, optimizer: str) -> State:
        """Train in one process that knows nothing of tiles, and return its state."""
        if optimizer not in self._by_the_plain_loop:
            batches = ((step, *batch) for step, batch in enumerate(self._batches))
            self._by_the_plain_loop[optimizer] = plain_loop(self._chain(AGENT), recipe(optimizer), batches)
        return self._by_the_plain_loop[optimizer]

    def by_its_tiles(self, placement: Placement, optimizer: str) -> State:
        """Train in one process that runs the same tiles, and return its state."""
        chain = self._chain(AGENT)
        plain = plain_tiles(chain, placement, recipe(optimizer))
        for step, batch in enumerate(self._batches):
            plain.step(step, *batch)
        return {name: value.clone() for name, value in chain.module.state_dict().items()}

    def placed(self, placement: Placement, optimizer: str) -> State:
        """Train on the workers of the placement, and return their state."""
        chains = {worker: self._chain(worker) for worker in placement.workers}
        in_process(chains, placement, recipe(optimizer)).train(0, len(SAMPLES), iter(self._batches))
        whole = chains[AGENT].module
        whole.load_state_dict(state_of(chains, placement), strict=False)  # This has tied weights by one of their names.
        return whole.state_dict()

    def _chain(self, worker: str) -> Chain:
        """Build a worker's own copy, with the first weights."""
        if worker not in self._chains:
            example, _ = self._batches[0]
            self._chains[worker] = build_chain(copy.deepcopy(self._module), example)
        chain = self._chains[worker]
        chain.module.load_state_dict(self._module.state_dict())
        return chain


@pytest.fixture(scope="module", params=MODELS)
def trained(request, one_thread):  # noqa: ARG001 - what is compared is computed on one thread
    return Trained(request.param)


def of_ranges(ranges: dict[str, Sequence[str]]) -> Placement:
    """Return the placement in which each worker has these blocks, on all samples."""
    whole = Rows(0, BATCH_SIZE)
    tiles = [
        Tile(worker, *parse_range(text).bounds(BLOCKS), whole) for worker, texts in ranges.items() for text in texts
    ]
    workers = tuple(dict.fromkeys([AGENT, *ranges]))
    return Placement(0, BLOCKS, BATCH_SIZE, workers, tuple(tiles), (Source(AGENT, whole),))


@pytest.mark.parametrize(("kind", "optimizer"), crossed([*CUTS, *RANGES], OPTIMIZERS))
def test_blocks_of_one_worker_each_equal_the_plain_loop(trained, kind, optimizer):
    placement = of_ranges({**CUTS, **RANGES}[kind])
    assert_same_bits(trained.by_the_plain_loop(optimizer), trained.placed(placement, optimizer))


def of_document(document: dict[str, Any]) -> Placement:
    """Return the placement that a document describes for larger batches, its samples divided in the same proportion."""
    written = parse_placement(document, "the placement", BLOCKS, WRITTEN_SIZE)
    tiles = tuple(replace(tile, rows=tile.rows.scaled(BATCH_SIZE, WRITTEN_SIZE)) for tile in written.tiles)
    return replace(written, batch_size=BATCH_SIZE, tiles=tiles, sources=(Source(AGENT, Rows(0, BATCH_SIZE)),))


@pytest.mark.parametrize(("kind", "optimizer"), crossed(SHARED, OPTIMIZERS))
def test_shared_blocks_equal_one_process_that_runs_the_same_tiles(trained, kind, optimizer):
    placement = of_document(SHARED[kind])
    assert_same_bits(trained.by_its_tiles(placement, optimizer), trained.placed(placement, optimizer))
