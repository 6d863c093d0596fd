"""One norm for the gradients of all blocks: the results are those of torch's own clipping in one process, and cost no trip."""

from itertools import product

import pytest

from isthmus import run_training
from shared.errors import ExitCode
from tests.support.commands import agent_fails
from tests.support.crossed import thinned
from tests.support.experiments import MODELS
from tests.support.placed_runs import trained_as_one_process
from tests.support.placement_kinds import RANGES, SHARED, addresses_of, flags_of, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
CLIPPED = 'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=0.3, clip="model"}'
# Over the end of an epoch, so that a batch in the middle is shorter.
STEPS = ["data.batch_size=64", "training.max_steps=27", "training.epochs=3", "data.drop_last=false"]
QUICK = ("chain of three",)


@pytest.mark.parametrize(
    ("kind", "batches"),
    thinned(product([*RANGES, *SHARED], [1, 3]), lambda values: values[0] in QUICK and values[1] == 1),
)
async def test_every_kind_of_placement_equals_one_process(kind, batches, tmp_path):
    more = [f"training.accumulate_batches={batches}"]
    await trained_as_one_process(kind, "cnn", tmp_path, [CLIPPED, *STEPS, *more])


@pytest.mark.first_case
@pytest.mark.parametrize("model", ["mlp", "tied", pytest.param("lstm", marks=pytest.mark.slow), "fickle"])
async def test_so_does_every_model(model, tmp_path):
    """Weights that two blocks use, and parameters that no gradient reaches in some steps."""
    await trained_as_one_process("labels stay", model, tmp_path, [CLIPPED, *STEPS])


async def test_the_device_alone_clips_as_one_process():
    chosen = [*MODELS["mlp"], CLIPPED, "training.max_steps=12", "trainers=[]"]
    result = await run_training(edge_config(*chosen))
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
async def test_with_staleness_runs_end_and_stop_with_every_update_applied(tmp_path):
    chosen = [*MODELS["mlp"], CLIPPED, "training.max_steps=40", "deployment.staleness=3", "training.epochs=4"]
    async with running_trainers() as servers:
        placed = flags_of("chain of three", addresses_of(servers), tmp_path)
        result = await run_training(edge_config(*chosen, *placed))
    assert result.summary.steps == 40


def test_a_model_is_clipped_to_no_norm_but_a_given_one():
    flag = 'training.optimizer={name="sgd", clip="model"}'
    agent_fails(ExitCode.CONFIG, 'clip is "model", and there is no norm to clip to; set clip_norm', flags=[flag])
