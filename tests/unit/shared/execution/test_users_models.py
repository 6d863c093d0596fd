"""Models as people write them: at every cut that is offered, training equals the plain loop, bit for bit."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from torch import nn

from shared.placement import Placement
from tests.support.models.users import texts
from tests.support.models.users.tasks import TASKS, VARYING
from tests.support.plain import assert_same_bits
from tests.support.trained import MOST_STEPS, Trained

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.zoo]
FIRST = (
    *("table of kinds and numbers", "VAE with its own loss", "GPT with tied weights", "torch's encoder with padding"),
    *("GPT-2 with adapters", "EfficientNet", "detector with three outputs", "mixture of experts"),
)
"""Models of which `make test` has the quick form."""
PLACEMENTS, QUICK = 24, 4
"""Most placements with several cuts of one model, and steps and placements of the quick form."""


@pytest.fixture(scope="module", params=TASKS)
def trained(request, one_thread):  # noqa: ARG001 - what is compared is computed on one thread
    return Trained(TASKS[request.param])


def chosen(trained: Trained, most: int) -> Iterator[Placement]:
    """Every cut, and some of the placements with several cuts."""
    every = list(trained.placements())
    several = [each for each in every if len(each.tiles) > 2]
    yield from (each for each in every if len(each.tiles) == 2)
    yield from several[:: -(-len(several) // most) or 1]


def without_chance(module: nn.Module) -> nn.Module:
    """The module without dropout, so that the plain loop runs the module itself and not its blocks."""
    for part in module.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
)
def test_training_at_any_cut_equals_the_plain_loop(name):
    task = TASKS[name]
    trained = Trained(task._replace(model=lambda: without_chance(task.model())))
    for placement in list(chosen(trained, QUICK))[::2]:
        assert_same_bits(trained.plain(QUICK), trained.placed(placement, QUICK))


@pytest.mark.first_case
@pytest.mark.parametrize("name", VARYING)
def test_batches_of_several_lengths_train_at_any_cut_as_in_the_plain_loop(name):
    task = VARYING[name]
    trained = Trained(task._replace(model=lambda: without_chance(task.model()), longest=texts.LENGTH))
    assert len(trained.chain.blocks) >= 3
    for placement in list(chosen(trained, QUICK))[::2]:
        assert_same_bits(trained.plain(QUICK), trained.placed(placement, QUICK))


@pytest.mark.full
@pytest.mark.parametrize("name", VARYING)
def test_thirty_steps_of_several_lengths_at_every_cut_equal_the_plain_loop(name):
    trained = Trained(VARYING[name]._replace(longest=texts.LENGTH))
    for placement in chosen(trained, PLACEMENTS):
        assert_same_bits(trained.plain(MOST_STEPS), trained.placed(placement, MOST_STEPS))


@pytest.mark.full
def test_thirty_steps_at_every_cut_labels_that_stay_and_chains_of_three_equal_the_plain_loop(trained):
    for placement in chosen(trained, PLACEMENTS):
        assert_same_bits(trained.plain(MOST_STEPS), trained.placed(placement, MOST_STEPS))


@pytest.mark.full
@pytest.mark.parametrize("backward", ["replay", "stash"])
def test_the_order_of_a_training_with_stale_weights_gives_its_bits_again(trained, backward):
    for seed, placement in enumerate(list(chosen(trained, PLACEMENTS))[::3]):
        assert_same_bits(*trained.late_and_replayed(replace(placement, staleness=2), backward, seed, 6))
