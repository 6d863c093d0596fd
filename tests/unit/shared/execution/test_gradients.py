"""The gradient of a divided batch: the sum of its parts at the owners is that of the whole batch."""

import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.execution.model_facts import facts_of
from shared.model.random_state import random_state
from shared.registry import OptimizerConfig
from tests.support.placed import CLASSES, INPUTS, WIDTH, LooseSession, batch_of, chain_of, recipe
from tests.support.placements import placements

pytestmark = pytest.mark.usefixtures("one_thread")
MOST_DIFFERENCE = 1e-5
"""Largest difference, as a share of a block's gradient. Parts are rounded where the whole is not, so bits may differ."""
KEPT = recipe("sgd").model_copy(update={"optimizer": OptimizerConfig(name="sgd", learning_rate=0.05, momentum=0.9)})
"""A recipe whose momentum after one step is the gradient itself."""


class Residual(nn.Module):
    """Two layers, and a connection around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.second(self.first(value).tanh())


def model() -> nn.Sequential:
    """Build four blocks without random numbers and statistics over samples: no sample depends on its neighbours."""
    with random_state("weights"):
        return nn.Sequential(
            nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.LayerNorm(WIDTH)),
            Residual(),
            nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH)),
            nn.Linear(WIDTH, CLASSES),
        )


FACTS = facts_of(chain_of(model()))


@st.composite
def divided(draw):
    """Draw a placement in which two or three workers share a block, each with its own samples."""
    placement = draw(placements(FACTS, st.integers(3, 12)))
    assume(any(len(placement.holders(block)) > 1 for block in range(placement.blocks)))
    return placement


def gradients_of_the_whole(inputs, labels):
    """Return the gradients of a batch's mean loss by block, one batch after the other."""
    module = model()
    nn.functional.cross_entropy(module(inputs), labels).backward()
    return [torch.cat([parameter.grad.flatten() for parameter in block.parameters()]) for block in module]


def gradients_put_together(session, placement):
    """Return the gradient by which the owner has updated each block."""
    for index in range(placement.blocks):
        held = session.blocks[placement.owner(index)].held
        state, names = held.block_tensors(index), held.chain.blocks[index].named_parameters()
        yield torch.cat([state[f"optimizer/{name}/momentum_buffer"].flatten() for name in names])


@pytest.mark.slow
@given(divided(), st.data())
def test_the_first_gradient_of_a_divided_batch_is_that_of_the_whole_batch(placement, data):
    inputs, labels = batch_of(0, data.draw(st.integers(1, placement.batch_size)))
    dice = random.Random(data.draw(st.integers(0, 2**32 - 1)))
    session = LooseSession(model(), placement, KEPT, "replay", dice)
    session.train([(inputs, labels)])
    expected = gradients_of_the_whole(inputs, labels)
    for index, found in enumerate(gradients_put_together(session, placement)):
        assert (found - expected[index]).norm() <= MOST_DIFFERENCE * expected[index].norm(), f"block {index}"
