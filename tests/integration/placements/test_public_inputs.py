"""A mask that is public goes to trainers that take no samples, and nothing else of the samples does."""

from contextlib import AsyncExitStack

import pytest

from edge_agent.experiment.experiment import Experiment
from isthmus import run_training
from shared.errors import ConfigError
from tests.support.placement_kinds import BATCH_SIZE, running_trainers, trainers_flag
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config
from tests.support.stand_ins.recording import recorded

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4
MODEL = [
    'model.factory="tests.support.models.several:NamedEncoder"',
    "model.kwargs={vocabulary=50, classes=4}",
    'data.train={factory="tests.support.samples:Masked"}',
    f"data.batch_size={BATCH_SIZE}",
    f"training.max_steps={STEPS}",
]
PUBLIC = 'privacy.public_inputs=["attention_mask"]'
PLACED = ['placement.edge="0:2"', 'placement.near="2:3"', 'placement.far="3:"']


@pytest.mark.slow
async def test_a_public_mask_goes_to_trainers_that_take_no_samples_and_tokens_do_not():
    async with AsyncExitStack() as open_ears:
        servers = await open_ears.enter_async_context(running_trainers(accept_inputs=False))
        found = {
            name: await open_ears.enter_async_context(recorded(server.address)) for name, server in servers.items()
        }
        addresses = {name: address for name, (address, _) in found.items()}
        config = edge_config(*MODEL, PUBLIC, trainers_flag(addresses, ["near", "far"]), *PLACED)
        result = await run_training(config)
    assert_same_bits(plain_state(edge_config(*MODEL)), result.module.state_dict())
    near, far = (found[name][1] for name in ("near", "far"))
    for batch in Experiment(config).loader.iterate(0, STEPS):
        mask, tokens = (batch.inputs[name] for name in ("attention_mask", "input_ids"))
        assert near.heard(((~mask) * -1e4).numpy().tobytes()), "the attention's own, which a block has made of it"
        assert near.heard(mask.numpy().tobytes())
        assert not any(ear.heard(row.numpy().tobytes()) for ear in (near, far) for row in tokens)


def test_a_placement_that_sends_a_private_mask_names_it_and_the_key():
    with pytest.raises(
        ConfigError,
        match=r"raw samples would go from 'edge' to 'near': .*reads what the input 'attention_mask' alone has made; .*"
        r'privacy\.public_inputs = \["attention_mask"\] permits it',
    ):
        Experiment(edge_config(*MODEL, trainers_flag({"near": "here:1", "far": "there:1"}, ["near", "far"]), *PLACED))


def test_a_public_input_that_the_model_lacks_is_named():
    with pytest.raises(
        ConfigError, match=r"privacy\.public_inputs names 'mask', which is no input of the model; its inputs"
    ):
        Experiment(edge_config(*MODEL, 'privacy.public_inputs=["mask"]'))
