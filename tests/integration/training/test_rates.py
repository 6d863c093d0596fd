"""Schedules that change more than the rate, or that are a user's own: the results are those of one process."""

import pytest

from isthmus import run_training
from shared.errors import ExitCode, RefusedError
from tests.support.commands import agent_fails
from tests.support.crossed import thinned
from tests.support.experiments import MODELS
from tests.support.placed_runs import trained_as_one_process
from tests.support.placement_kinds import RANGES, SHARED
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
CYCLE = 'training.schedule={name="onecycle", three_phase=true}'
LENGTH = ["data.batch_size=64", "training.epochs=2", "training.max_steps=40"]
OWN = "tests.support.models.schedules:of_inverse_root"
QUICK = ("labels stay",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(zip([*RANGES, *SHARED]), lambda values: values[0] in QUICK))
async def test_every_kind_of_placement_equals_one_process(kind, tmp_path):
    await trained_as_one_process(kind, "mlp", tmp_path, [CYCLE, *LENGTH])


async def test_a_function_of_the_users_equals_one_process(tmp_path):
    more = [f'training.schedule={{name="{OWN}", warmup_steps=2}}', "training.max_steps=8"]
    await trained_as_one_process("labels stay", "mlp", tmp_path, more)


async def test_a_trainer_has_to_allow_the_function():
    async with running_trainer('models.allowed=["shared.model.zoo"]') as server:
        config = edge_config(*MODELS["mlp"], f"trainer.address={server.address}", f'training.schedule.name="{OWN}"')
        with pytest.raises(RefusedError, match=rf"factory '{OWN}' is not allowed \(models\.allowed\)"):
            await run_training(config)


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("triangle", ExitCode.CONFIG, "name is 'triangle'; it must be one of constant, multistep"),
        ("tests.support.models.schedules:of_a_failure", ExitCode.MODEL, "failed at step 0 of"),
    ],
)
def test_a_schedule_that_cannot_be(name, code, says):
    agent_fails(code, says, flags=[f'training.schedule.name="{name}"'])
