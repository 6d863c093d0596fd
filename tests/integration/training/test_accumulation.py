"""Updates of several batches: the results are those of one process that adds up their gradients, and runs stop only between."""

import re

import pytest

from isthmus import run_training
from shared.errors import ExitCode
from tests.support.commands import agent_fails
from tests.support.crossed import thinned
from tests.support.experiments import MODELS
from tests.support.placed_runs import trained_as_one_process
from tests.support.placement_kinds import ACCEPTS_INPUTS, RANGES, SHARED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.plain_history import of, plain_history
from tests.support.running import edge_config, running_trainer, train_with

pytestmark = pytest.mark.usefixtures("one_thread")
BATCHES = 3
ACCUMULATED = f"training.accumulate_batches={BATCHES}"
# One batch more than whole updates, and one in the middle that is shorter.
STEPS = ["data.batch_size=64", "training.max_steps=28", "training.epochs=3", "data.drop_last=false"]
QUICK = ("chain of three",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(zip([*RANGES, *SHARED]), lambda values: values[0] in QUICK))
async def test_every_kind_of_placement_equals_one_process(kind, tmp_path):
    summary = await trained_as_one_process(kind, "cnn", tmp_path, [*STEPS, ACCUMULATED])
    assert summary.steps == 27


OF_TOKENS = 'training.mean="token"'
GPT = [
    'model.factory="tests.support.models.asking:Gpt"',
    "model.kwargs={layers=1}",
    'data.train={factory="tests.support.samples:NextTokens"}',
    'data.test={factory="tests.support.samples:NextTokens", kwargs={samples=30}}',
    'privacy.inputs_to=["trainer"]',
]
PARTLY = 'data.train={factory="tests.support.samples:PartlyLabelled"}'


@pytest.mark.parametrize(
    "kind",
    [
        *thinned(zip(RANGES), lambda values: values[0] == "two workers"),
        *thinned(zip(SHARED), lambda values: values[0] == "samples divided"),
    ],
)
async def test_a_mean_of_tokens_is_that_of_one_process_at_every_kind_of_placement(kind, tmp_path):
    summary = await trained_as_one_process(kind, "cnn", tmp_path, [*STEPS, ACCUMULATED, OF_TOKENS, PARTLY])
    assert summary.steps == 27


@pytest.mark.parametrize(
    "more",
    [
        ["training.loss=token_cross_entropy"],
        ['training.loss={name="token_cross_entropy", kwargs={label_smoothing=0.1}}', ACCUMULATED],
        pytest.param(['training.precision="fp16"', "training.loss=token_cross_entropy", ACCUMULATED]),
        ["training.loss=token_cross_entropy", ACCUMULATED, "data.ahead=2"],
    ],
)
async def test_a_mean_of_tokens_is_that_of_one_process_with_a_loss_of_tokens(more):
    chosen = [
        *GPT,
        "data.batch_size=16",
        "training.max_steps=12",
        OF_TOKENS,
        *more,
    ]
    async with running_trainer(ACCEPTS_INPUTS) as server:
        result = await train_with(server, *chosen, "deployment.cut=2")
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def test_a_mean_of_tokens_shows_the_loss_of_each_batch_by_its_own_labels(tmp_path):
    """History counts each batch by its own labels, whatever the update divides by."""
    chosen = [*MODELS["cnn"], PARTLY, "data.batch_size=64", "training.epochs=1", OF_TOKENS]
    async with running_trainer() as server:
        result = await train_with(server, *chosen, "deployment.cut=2", f"output.directory={tmp_path}")
    assert of(result.history) == plain_history(edge_config(*chosen), lambda _: False)


def test_a_loss_that_only_gives_a_mean_has_no_mean_of_tokens():
    own = 'training.loss="tests.support.models.losses:of_the_first"'
    expected = "gives a mean of unknown count; let the function take reduction"
    agent_fails(ExitCode.CONFIG, expected, flags=[own, OF_TOKENS])


@pytest.mark.parametrize("policy", ["replay", "stash"])
async def test_a_boundary_has_every_gradient_applied(policy, tmp_path, capfd):
    """Evaluations, checkpoints and changes of K are wanted at steps that are no boundaries."""
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        config = edge_config(
            *MODELS["mlp"],
            'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}',
            "data.batch_size=256",
            "training.epochs=4",
            ACCUMULATED,
            "deployment.staleness=[[0, 0], [1, 2]]",
            f'deployment.backward="{policy}"',
            f"checkpoints.location={tmp_path / 'edge'}",
            "checkpoints.every_steps=4",
            f"trainer.address={server.address}",
        )
        result = await run_training(config)
    assert result.summary.steps == 18
    said = capfd.readouterr()
    lines = (said.out + said.err).splitlines()
    epochs = [re.search(r"epoch=(\d+)", line)[1] for line in lines if " evaluated " in line]
    assert epochs == ["1", "2", "3", "4"]
    steps = [
        re.search(r"step=(\d+)", line)[1] for line in lines if re.search(" checkpoint at every | placement ch", line)
    ]
    assert "6" in steps, "K changes at the boundary that follows the end of the first epoch"
    assert all(int(step) % BATCHES == 0 for step in steps)


def test_a_training_that_is_too_short_for_an_update_is_refused():
    expected = "training.accumulate_batches is 8, and the training has 5 batches in all, too few for one update"
    agent_fails(ExitCode.CONFIG, expected, flags=["training.accumulate_batches=8", "training.max_steps=5"])
