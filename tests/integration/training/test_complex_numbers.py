"""Complex numbers, as of a Fourier transform, learn like others; where they would go to another worker they are refused."""

import pytest

from shared.errors import ConfigError
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer, train_with

FLAGS = [
    'model.factory="tests.support.models.beside:spectral"',
    'data.train={factory="tests.support.samples:FlatDigits"}',
    "training.epochs=1",
    "training.max_steps=12",
]


@pytest.mark.parametrize("cut", [2, 4, 5])
async def test_blocks_before_complex_numbers_learn_as_in_one_process(cut):
    flags = [*FLAGS, f"deployment.cut={cut}"]
    async with running_trainer() as trainer:
        result = await train_with(trainer, *flags)
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


async def test_a_cut_that_complex_numbers_would_cross_is_refused():
    async with running_trainer() as trainer:
        with pytest.raises(ConfigError, match="numbers of type complex64, which cannot be sent; let one worker have"):
            await train_with(trainer, *FLAGS, "deployment.cut=3")
