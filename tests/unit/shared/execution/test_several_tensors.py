"""Models between whose blocks several tensors pass: at every placement, training equals the plain loop, bit for bit."""

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.execution.model_facts import facts_of
from shared.placement import Cargo, StepPlan
from tests.support.examples import examples
from tests.support.models import several
from tests.support.placements import valid_placements
from tests.support.plain import assert_same_bits
from tests.support.trained import BATCH, Batch, Task, Trained, placement_of

pytestmark = pytest.mark.usefixtures("one_thread")
FEW, MANY = 4, 30
"""Steps of a training."""


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
    assert isinstance(tokens, torch.Tensor)
    return {"input_ids": tokens, "attention_mask": tokens != 0}, labels


TASKS = {
    "U-Net": Task(several.UNet, pictures),
    "encoder with a mask of padding": Task(several.PaddedEncoder, sentences),
    "tied weights and a causal mask": Task(several.CausalModel, texts, "token_cross_entropy"),
    "a tensor that all layers read": Task(several.Biased, sentences),
    "two inputs by their places": Task(several.Recommender, purchases),
    "inputs by name": Task(several.NamedEncoder, masked),
}


@pytest.fixture(scope="module", params=TASKS)
def trained(request, one_thread):  # noqa: ARG001 - what is compared is computed on one thread
    return Trained(TASKS[request.param])


@pytest.mark.first_case
def test_every_cut_labels_that_stay_and_chains_equal_the_plain_loop(trained):
    for placement in trained.placements():
        assert_same_bits(trained.plain(FEW), trained.placed(placement, FEW))


@pytest.mark.full
def test_thirty_steps_equal_the_plain_loop(trained):
    for placement in trained.placements():
        assert_same_bits(trained.plain(MANY), trained.placed(placement, MANY))


@pytest.mark.slow
@pytest.mark.parametrize("backward", ["replay", pytest.param("stash", marks=pytest.mark.full)])
def test_the_order_of_a_training_with_stale_weights_gives_its_bits_again(trained, backward):
    for seed, placement in enumerate(list(trained.placements())[::4]):
        assert_same_bits(*trained.late_and_replayed(replace(placement, staleness=2), backward, seed, 6))


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
    unet = Trained(TASKS["U-Net"])
    down, up = (one.bytes for one in (unet.chain.features[2][1], unet.chain.features[3][2]))
    found = bytes_between(unet, {"edge": [range(2), range(3, 5)], "near": [range(2, 3)]})
    assert found == {
        ("edge", "near", Cargo.FEATURE): down,
        ("near", "edge", Cargo.ERROR_GRADIENT): down,
        ("near", "edge", Cargo.FEATURE): up,
        ("edge", "near", Cargo.ERROR_GRADIENT): up,
    }


def test_a_mask_crosses_once_to_each_worker_and_no_gradient_returns_to_it():
    encoder = Trained(TASKS["encoder with a mask of padding"])
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
    chain = Trained(TASKS["tied weights and a causal mask"]).chain
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
    return Trained(TASKS["a tensor that all layers read"], torch.float64)
