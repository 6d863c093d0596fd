"""Every kind of placement over real sockets: with K = 0 and lossless codecs it trains bit for bit as one process."""

import asyncio
import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isthmus import run_training
from shared.errors import ConfigError
from shared.execution.model_facts import facts_of
from shared.model.chain import build_chain
from shared.placement import AGENT, Permissions, Rows, Source, check
from tests.support.examples import examples
from tests.support.experiments import MODELS, flags
from tests.support.models.tied import tied
from tests.support.placement_kinds import (
    BATCH_SIZE,
    RANGES,
    SHARED,
    TRAINERS,
    addresses_of,
    flags_of,
    flags_of_placement,
    permitted,
    running_trainers,
)
from tests.support.placements import placements
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_tiles import plain_tiles_state
from tests.support.running import edge_config

OPTIMIZER_OF = {"mlp": "lion", "cnn": "adamw", "lstm": "adam", "tied": "nesterov", "fickle": "adamw"}
# Over the end of an epoch, so that a batch in the middle is shorter.
LENGTH = [f"data.batch_size={BATCH_SIZE}", "training.max_steps=26", "training.epochs=3", "data.drop_last=false"]
MODELS_OF = dict.fromkeys(RANGES, ("cnn", "fickle")) | {
    "labels stay": ("cnn", "mlp", "tied", "fickle"),
    "inverted": ("cnn", "lstm", "fickle"),
    "chain of three": ("cnn", "lstm", "tied", "fickle"),
    "chain of four": ("cnn", "mlp", "fickle"),
    "there and back": ("cnn", "tied", "fickle"),
}
SHARED_MODELS_OF = {
    "samples divided": ("cnn", "lstm", "tied", "fickle"),
    "owned by the device": ("cnn", "mlp", "fickle"),
    "owners that run nothing": ("mlp", "tied", "fickle"),
    "three tiers": ("cnn", "lstm", "fickle"),
}
TRIED = pytest.mark.parametrize(
    "most", [pytest.param(1, marks=pytest.mark.slow), pytest.param(None, id="all", marks=pytest.mark.full)]
)
"""Number of models of each kind that are tried."""
pytestmark = pytest.mark.usefixtures("one_thread")


def chosen_for(model):
    return [*flags(model, OPTIMIZER_OF[model]), *LENGTH]


@functools.cache
def plain(model):
    return plain_state(edge_config(*chosen_for(model)))


def test_every_kind_and_every_model_is_tried():
    assert MODELS_OF.keys() == RANGES.keys()
    assert SHARED_MODELS_OF.keys() == SHARED.keys()
    for tried in (MODELS_OF, SHARED_MODELS_OF):
        assert {model for models in tried.values() for model in models} == set(MODELS)


@TRIED
async def test_blocks_of_one_worker_each_equal_the_plain_loop(tmp_path, most):
    evaluations = set()
    async with running_trainers() as servers:
        for kind, models in MODELS_OF.items():
            for model in models[:most]:
                placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, model)]
                result = await run_training(edge_config(*chosen_for(model), *placed))
                assert_same_bits(plain(model), result.module.state_dict())
                assert {block.worker for block in result.summary.blocks} == set(RANGES[kind]), kind
                if model == "cnn":
                    evaluations.add((result.summary.accuracy, result.summary.test_loss))
    assert len(evaluations) == 1, "evaluations take the same way, and find what two workers find"


@TRIED
async def test_shared_blocks_equal_one_process_that_runs_the_same_tiles(tmp_path, most):
    async with running_trainers() as servers:
        for kind, models in SHARED_MODELS_OF.items():
            for model in models[:most]:
                placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, model)]
                config = edge_config(*chosen_for(model), *placed)
                result = await run_training(config)
                assert_same_bits(plain_tiles_state(config), result.module.state_dict())
                owners = SHARED[kind]["owners"]
                assert all(result.summary.blocks[int(block)].worker == owner for block, owner in owners.items())


FACTS = facts_of(build_chain(tied(), torch.zeros(8, 64)))


PERMITTED = 'privacy.inputs_to=["near", "far"]'


@st.composite
def placements_of_an_agent(draw):
    """Any valid placement of the tied model on an agent that has all samples and two trainers."""
    batch_size = draw(st.integers(4, 12))
    drawn = draw(placements(FACTS, st.just(batch_size)))
    placement = replace(drawn, sources=(Source(AGENT, Rows(0, batch_size)),), staleness=0)
    try:
        check(placement, FACTS, Permissions(inputs_to=frozenset(TRAINERS)))
    except ConfigError:
        assume(False)
    return placement


@pytest.mark.slow
@settings(max_examples=examples(6))
@given(placement=placements_of_an_agent())
def test_any_placement_equals_one_process_that_runs_the_same_tiles(placement):
    async def trained(folder):
        async with running_trainers() as servers:
            placed = flags_of_placement(placement, addresses_of(servers), folder)
            config = edge_config(*flags("tied", "adam"), *placed, PERMITTED, "training.max_steps=8")
            return plain_tiles_state(config), (await run_training(config)).module.state_dict()

    with tempfile.TemporaryDirectory() as folder:
        assert_same_bits(*asyncio.run(trained(Path(folder))))
