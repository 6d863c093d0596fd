"""A teacher: weights that a forward changes now and then. As buffers they are state; as parameters they are refused."""

import pytest

from shared.errors import ModelError
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, run_agent, running_trainer, train_with, trainer_process

MODELS = "tests.support.models.beside"


def flags_for(factory, cut, **kwargs):
    arguments = ", ".join(f"{name}={str(value).lower()}" for name, value in kwargs.items())
    return [
        f'model.factory="{MODELS}:{factory}"',
        f"model.kwargs={{{arguments}}}",
        'data.train={factory="tests.support.samples:FlatDigits"}',
        "training.epochs=1",
        "training.max_steps=20",
        f"deployment.cut={cut}",
    ]


@pytest.mark.parametrize("cut", [2, 4])
async def test_a_teacher_of_buffers_has_the_weights_of_one_process(cut):
    flags = flags_for("taught", cut, every=8, as_buffers=True)
    async with running_trainer() as trainer:
        result = await train_with(trainer, *flags)
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


@pytest.mark.parametrize("cut", [2, 4])
@pytest.mark.parametrize(("factory", "kwargs"), [("taught", {"every": 8}), ("drifting", {})])
async def test_weights_that_do_not_learn_and_change_end_the_run_with_its_last_step_at_the_latest(factory, kwargs, cut):
    async with running_trainer() as trainer:
        with pytest.raises(ModelError, match=r"block '2' has changed parameters .*'2.target'.* as buffers"):
            await train_with(trainer, *flags_for(factory, cut, **kwargs))


@pytest.mark.parametrize("cut", [2, 4])
def test_they_end_the_run_at_its_first_checkpoint(cut, tmp_path):
    with trainer_process(f'checkpoints.location="{tmp_path / "trainer"}"') as (_, address):
        flags = [
            *flags_for("taught", cut, every=8),
            f'trainer.address="{address}"',
            f'checkpoints.location="{tmp_path / "edge"}"',
            "checkpoints.every_steps=10",
            "training.max_steps=100_000",
            "training.epochs=100_000",
        ]
        done = run_agent("run", *(f"--set={flag}" for flag in flags), f"--output={tmp_path / 'out'}")
    assert done.returncode == 4, done.stderr
    assert "has changed parameters of its own that do not learn ('2.target')" in done.stderr
    assert not (tmp_path / "out" / "model.safetensors").exists()
