"""Training in bfloat16: the results are those of one process under autocast, and features have half the bytes."""

import pytest

from edge_agent import run_training
from shared.errors import ExitCode
from tests.support.commands import agent_fails
from tests.support.experiments import flags
from tests.support.placement_kinds import addresses_of, flags_of, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = 'training.precision="bf16"'
STEPS = "training.max_steps=12"


@pytest.mark.parametrize("policy", ["replay", "stash"])
@pytest.mark.parametrize("model", ["cnn", "mlp", "tied"])
async def test_a_cut_changes_no_bit(model, policy):
    chosen = [*flags(model, "adamw"), SHORT, STEPS, f'deployment.backward="{policy}"']
    async with running_trainer() as server:
        for cut in (1, 3):
            result = await train_with(server, *chosen, f"deployment.cut={cut}")
            assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.parametrize("kind", ["chain of three", "labels stay"])
async def test_nor_does_another_placement(kind, tmp_path):
    chosen = [*flags("cnn", "adam"), SHORT, STEPS]
    async with running_trainers() as servers:
        result = await run_training(edge_config(*chosen, *flags_of(kind, addresses_of(servers), tmp_path)))
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())
    differs = plain_state(edge_config(*flags("cnn", "adam"), STEPS))
    with pytest.raises(AssertionError, match="differ: "):
        assert_same_bits(differs, result.module.state_dict())


async def test_raw_features_and_error_gradients_have_half_the_bytes():
    chosen = [*flags("cnn", "sgd"), STEPS, "deployment.cut=2", "deployment.codec=raw", "deployment.downlink_codec=raw"]
    async with running_trainer() as server:
        whole = (await train_with(server, *chosen)).summary
        half = (await train_with(server, *chosen, SHORT)).summary
    assert half.bytes_down * 2 == whole.bytes_down
    labels = 2 * half.bytes_up - whole.bytes_up
    assert 0 < labels < whole.bytes_up / 100


def test_another_precision_is_refused_by_name():
    agent_fails(ExitCode.CONFIG, 'training.precision is "fp8"; it must be', flags=['training.precision="fp8"'])
