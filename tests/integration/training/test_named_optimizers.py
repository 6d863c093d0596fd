"""Optimizers that are named by their class: the results are those of one process, and those that cannot be are refused."""

import pytest

from isthmus import run_training
from shared.errors import ExitCode, RefusedError
from tests.support.commands import agent_fails
from tests.support.crossed import thinned
from tests.support.experiments import MODELS
from tests.support.placed_runs import trained_as_one_process
from tests.support.placement_kinds import RANGES, SHARED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
NADAM = "tests.support.models.optimizers:Nadam"
CHOSEN = f'training.optimizer={{name="{NADAM}", learning_rate=0.003, weight_decay=0.01, kwargs={{betas=[0.8, 0.99]}}}}'
LENGTH = ["data.batch_size=64", "training.max_steps=20"]
QUICK = ("labels stay",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(zip([*RANGES, *SHARED]), lambda values: values[0] in QUICK))
async def test_every_kind_of_placement_equals_one_process(kind, tmp_path):
    await trained_as_one_process(kind, "mlp", tmp_path, [CHOSEN, *LENGTH])


async def test_one_that_takes_matrices_alone_trains_them():
    matrices = [
        *MODELS["mlp"],
        'model.learns=["*.weight"]',
        'training.optimizer={name="torch.optim:Muon", learning_rate=0.05}',
        *LENGTH,
    ]
    async with running_trainer('models.allowed=["shared.model.zoo", "torch.optim:Muon"]') as server:
        result = await run_training(edge_config(*matrices, f"trainer.address={server.address}"))
    assert_same_bits(plain_state(edge_config(*matrices)), result.module.state_dict())


async def test_a_trainer_has_to_allow_the_class():
    async with running_trainer('models.allowed=["shared.model.zoo"]') as server:
        config = edge_config(*MODELS["mlp"], f"trainer.address={server.address}", CHOSEN)
        with pytest.raises(RefusedError, match=rf"factory '{NADAM}' is not allowed \(models\.allowed\)"):
            await run_training(config)


@pytest.mark.parametrize(
    ("optimizer", "code", "says"),
    [
        ("nadam", ExitCode.CONFIG, "name is 'nadam'; it must be one of sgd, adam"),
        ("torch.optim:LBFGS", ExitCode.MODEL, "without a closure: TypeError: LBFGS.step() missing"),
        ("torch.optim:Muon", ExitCode.MODEL, ".bias' cannot learn: optimizer 'torch.optim:Muon' cannot be tried on"),
        ("tests.support.models.optimizers:OfAll", ExitCode.MODEL, "updates a parameter otherwise where it has others"),
    ],
)
def test_an_optimizer_that_cannot_be(optimizer, code, says):
    agent_fails(code, says, flags=[f'training.optimizer={{name="{optimizer}", learning_rate=0.05}}'])
