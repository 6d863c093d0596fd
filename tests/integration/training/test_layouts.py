"""Tensors that lie in memory in unusual ways cross the cut like all others, and the weights are those of one process."""

import pytest

from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = ['data.train={factory="tests.support.samples:FlatDigits"}', "training.max_steps=5"]


@pytest.mark.parametrize("codec", ["fp32", "fp16"])
async def test_half_precision_windows_that_overlap_cross_the_cut(codec):
    chosen = [
        *DATA,
        'model.factory="tests.support.models.layouts:windows"',
        "deployment.cut=2",
        f"deployment.codec={codec}",
    ]
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_a_gradient_whose_gaps_are_larger_than_itself_comes_back():
    chosen = [*DATA, 'model.factory="tests.support.models.layouts:widened"', "deployment.cut=1"]
    async with running_trainer() as server:
        result = await train_with(server, *chosen)
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
