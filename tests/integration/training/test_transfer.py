"""Transfer learning (paper 000, type 2): where nothing on the edge learns, nothing comes down and nothing waits for K."""

import pytest
import torch

from cloud_trainer.server import TrainerServer
from isthmus import run_training
from shared.events.worker import StepComputed
from shared.registry import POLICIES
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, BLOCKS = 25, 4
FLAGS = [
    "model.kwargs={width=8, blocks=2, dropout=0.2}",
    'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=1.0}',
    f"training.max_steps={STEPS}",
    "deployment.cut=2",
]
ALL_OF_THE_EDGE = 'model.frozen=["stem", "layers.0"]'


async def train_noting(server, *flags):
    """Train, and return the result with the steps whose gradient the edge has applied."""
    steps: list[int] = []

    def note(event):
        if event.staleness is not None:
            steps.append(event.step)

    config = edge_config(*flags, f"trainer.address={server.address}")
    return await run_training(config, Listening(others={StepComputed: note})), steps


def sent_down(server: TrainerServer) -> float:
    return server.metrics.registry.get_sample_value("isthmus_payload_bytes_total", {"direction": "down"})


@pytest.mark.first_case
@pytest.mark.parametrize("limit", [0, 5])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_frozen_edge_gets_no_gradient_and_learns_as_one_process_would(policy, limit):
    flags = [*FLAGS, ALL_OF_THE_EDGE, f'deployment.backward="{policy}"', f"deployment.staleness={limit}"]
    async with running_trainer() as server:
        result, applied = await train_noting(server, *flags)
        assert sent_down(server) == result.summary.bytes_down == 0
    assert result.summary.steps == STEPS
    assert not applied
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("cut", "frozen"),
    [
        (2, ["stem"]),
        pytest.param(2, ["layers.0"], marks=pytest.mark.slow),
        (2, ["layers.0.first", "classifier"]),
        pytest.param(3, ["classifier"], marks=pytest.mark.slow),
        pytest.param(4, ["stem", "layers.1"], marks=pytest.mark.slow),
        pytest.param(4, ["stem", "layers"], marks=pytest.mark.slow),
    ],
)
async def test_an_edge_of_which_a_part_is_frozen_gets_every_gradient(cut, frozen):
    flags = [*FLAGS, f"deployment.cut={cut}", f"model.frozen={frozen}".replace("'", '"')]
    async with running_trainer() as server:
        result, applied = await train_noting(server, *flags)
        assert sent_down(server) == result.summary.bytes_down
    assert bool(result.summary.bytes_down) == (cut < BLOCKS), "with all blocks here nothing crosses"
    assert applied == list(range(STEPS))
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


async def test_only_what_is_named_learns():
    """A pattern reaches into every block; biases of the edge learn, so every gradient comes back."""
    flags = [*FLAGS, 'model.learns=["*.bias"]']
    async with running_trainer() as server:
        result, applied = await train_noting(server, *flags)
    assert applied == list(range(STEPS))
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())
    assert all(
        parameter.requires_grad == name.endswith(".bias") for name, parameter in result.module.named_parameters()
    )


async def test_what_is_frozen_stays_and_the_rest_does_not():
    """Otherwise both sides of the comparisons above might have forgotten to freeze."""
    flags = [*FLAGS, ALL_OF_THE_EDGE]
    before = plain_state(edge_config(*flags, "training.max_steps=1"))
    after = plain_state(edge_config(*flags))
    same = {name for name in before if torch.equal(before[name], after[name])}
    parameters = {name for name in before if "running" not in name and "num_batches" not in name}
    assert same & parameters == {name for name in parameters if name.startswith(("stem.", "layers.0."))}
    assert not same & {"stem.1.running_mean", "layers.0.first.1.num_batches_tracked"}, "statistics go on"


@pytest.mark.first_case
@pytest.mark.parametrize("cut", [2, 1, 3])
async def test_frozen_blocks_stay_in_evaluation_on_either_side_where_that_is_asked_for(cut):
    flags = [*FLAGS, ALL_OF_THE_EDGE, 'model.frozen_mode="eval"', f"deployment.cut={cut}"]
    async with running_trainer() as server:
        result, _ = await train_noting(server, *flags)
    state = result.module.state_dict()
    assert_same_bits(plain_state(edge_config(*flags)), state)
    means = {name: value for name, value in state.items() if name.endswith("running_mean")}
    moved = {name for name, mean in means.items() if mean.any()}
    assert moved == {name for name in means if not name.startswith(("stem.", "layers.0."))}
