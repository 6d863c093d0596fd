"""Models between whose blocks several tensors pass: at every placement, training equals the plain loop, bit for bit."""

import copy
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.execution.model_facts import facts_of
from shared.model.chain import Chain, build_chain
from shared.model.inputs import Inputs
from shared.model.random_state import random_state
from shared.placement import AGENT, Cargo, Placement, Rows, Source, StepPlan, Tile
from shared.training.recipe import OptimizerConfig, Recipe, ScheduleConfig
from tests.support.examples import examples
from tests.support.models import several
from tests.support.placed import LooseSession, in_process, state_of
from tests.support.placements import valid_placements
from tests.support.plain import assert_same_bits, plain_loop

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, FEW, MANY = 4, 4, 30
"""Samples of a batch, and steps of a training."""
Batch = tuple[Inputs, Tensor]
State = dict[str, Tensor]


def pictures() -> Batch:
    return torch.randn(BATCH, 1, 8, 8), torch.randint(several.CLASSES, (BATCH,))


def sentences() -> Batch:
    return torch.randint(several.VOCABULARY, (BATCH, several.LENGTH)), torch.randint(several.CLASSES, (BATCH,))


def texts() -> Batch:
    tokens = torch.randint(several.VOCABULARY, (BATCH, several.LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def purchases() -> Batch:
    users, items = torch.randint(several.VOCABULARY, (BATCH,)), torch.randint(several.VOCABULARY, (BATCH, 3))
    return (users, items), torch.randint(several.CLASSES, (BATCH,))


def masked() -> Batch:
    tokens, labels = sentences()
    assert isinstance(tokens, Tensor)
    return {"input_ids": tokens, "attention_mask": tokens != 0}, labels


class Task(NamedTuple):
    """A model and its data."""

    model: Callable[[], nn.Module]
    draw: Callable[[], Batch]
    loss: str = "cross_entropy"


TASKS = {
    "U-Net": Task(several.UNet, pictures),
    "encoder with a mask of padding": Task(several.PaddedEncoder, sentences),
    "tied weights and a causal mask": Task(several.CausalModel, texts, "token_cross_entropy"),
    "a tensor that all layers read": Task(several.Biased, sentences),
    "two inputs by their places": Task(several.Recommender, purchases),
    "inputs by name": Task(several.NamedEncoder, masked),
}


class Trained:
    """A task that is trained again and again from the same first weights."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        self.task = TASKS[name]
        with random_state("several", name):
            self.module = self.task.model().to(dtype).train()
            self.batches = [self.task.draw() for _ in range(MANY)]
        self._chains: dict[str, Chain] = {}
        self.chain = self.built()
        self.plain = functools.cache(self._plain)

    def built(self, worker: str = AGENT) -> Chain:
        """Return a worker's own chain, with the first weights."""
        if worker not in self._chains:
            self._chains[worker] = build_chain(copy.deepcopy(self.module), self.batches[0][0])
        self._chains[worker].module.load_state_dict(self.module.state_dict())
        return self._chains[worker]

    def recipe(self) -> Recipe:
        return Recipe(
            optimizer=OptimizerConfig(learning_rate=0.05, momentum=0.9, clip_norm=1.0),
            schedule=ScheduleConfig(),
            loss=self.task.loss,
            seed=3,
            steps_per_epoch=MANY,
            total_steps=MANY,
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


@pytest.fixture(scope="module", params=TASKS)
def trained(request, one_thread):  # noqa: ARG001 - what is compared is computed on one thread
    return Trained(request.param)


def test_every_cut_labels_that_stay_and_chains_equal_the_plain_loop(trained):
    for placement in trained.placements():
        assert_same_bits(trained.plain(FEW), trained.placed(placement, FEW))


@pytest.mark.slow
def test_thirty_steps_equal_the_plain_loop(trained):
    for placement in trained.placements():
        assert_same_bits(trained.plain(MANY), trained.placed(placement, MANY))


@pytest.mark.parametrize("backward", ["replay", "stash"])
def test_the_order_of_a_training_with_stale_weights_gives_its_bits_again(trained, backward):
    for seed, placement in enumerate(list(trained.placements())[::4]):
        late = replace(placement, staleness=2)
        loose = LooseSession(
            trained.module, late, trained.recipe(), backward, random.Random(seed), trained.batches[0][0]
        )
        loose.train(trained.batches[:6])
        chains = {worker: trained.built(worker) for worker in placement.workers}
        in_process(chains, late, trained.recipe(), backward).replay(loose.turns, iter(trained.batches))
        assert_same_bits(trained.joined(loose.chains, late), trained.joined(chains, late))


def bytes_between(trained: Trained, workers: dict[str, list[range]]) -> dict[tuple[str, str, Cargo], int]:
    """Bytes of a step by direction and cargo."""
    chain = trained.chain
    plan = StepPlan(placement_of(workers, len(chain.blocks)), facts_of(chain))
    found: dict[tuple[str, str, Cargo], int] = {}
    for one in plan.crossings:
        if one.cargo is not Cargo.LABEL:
            key = one.sender, one.receiver, one.cargo
            found[key] = found.get(key, 0) + sum(chain.features[one.index][slot].bytes for slot in one.slots)
    return found


def test_skips_between_the_devices_own_blocks_do_not_cross():
    unet = Trained("U-Net")
    down, up = (one.bytes for one in (unet.chain.features[2][1], unet.chain.features[3][2]))
    found = bytes_between(unet, {"edge": [range(2), range(3, 5)], "near": [range(2, 3)]})
    assert found == {
        ("edge", "near", Cargo.FEATURE): down,
        ("near", "edge", Cargo.ERROR_GRADIENT): down,
        ("near", "edge", Cargo.FEATURE): up,
        ("edge", "near", Cargo.ERROR_GRADIENT): up,
    }


def test_a_mask_crosses_once_to_each_worker_and_no_gradient_returns_to_it():
    encoder = Trained("encoder with a mask of padding")
    (mask, feature) = encoder.chain.features[2]
    found = bytes_between(encoder, {"edge": [range(2), range(4, 6)], "near": [range(2, 3)], "far": [range(3, 4)]})
    assert found == {
        ("edge", "near", Cargo.FEATURE): mask.bytes + feature.bytes,
        ("near", "far", Cargo.FEATURE): feature.bytes,
        ("edge", "far", Cargo.FEATURE): mask.bytes,
        ("far", "edge", Cargo.FEATURE): feature.bytes,
        ("edge", "far", Cargo.ERROR_GRADIENT): feature.bytes,
        ("far", "near", Cargo.ERROR_GRADIENT): feature.bytes,
        ("near", "edge", Cargo.ERROR_GRADIENT): feature.bytes,
    }


def test_what_follows_from_sizes_does_not_cross():
    chain = Trained("tied weights and a causal mask").chain
    assert [len(feature) for feature in chain.features] == [1] * 7


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_division_of_samples_and_blocks_sums_up_to_the_plain_loop(data):
    """In float64, because sums of parts are rounded elsewhere."""
    biased = wide()
    placement = replace(data.draw(valid_placements(facts_of(biased.chain), st.just(BATCH))), staleness=0)
    expected, found = biased.plain(2), biased.placed(placement, 2)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11)


@functools.cache
def wide() -> Trained:
    return Trained("a tensor that all layers read", torch.float64)
