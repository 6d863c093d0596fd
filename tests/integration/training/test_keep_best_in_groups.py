"""A member of a group keeps the best weights by its own evaluations, whoever is killed."""

import asyncio

import pytest
from safetensors.torch import load_file

from edge_agent.training.history import read_history
from isthmus import run_training
from tests.support.group_flags import SHARD, group_of, member_of
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import running_trainer
from tests.support.running_group import SIZE, SLOWLY, Running

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZER = 'training.optimizer={name="sgd", learning_rate=0.7, momentum=0.5}'
"""Steps that are too large, so that losses go up and down."""


def chosen(rank, folder, mode="min"):
    """Return the flags of a member, which evaluates by samples of its own."""
    tested = f'data.test={{factory="tests.support.samples:SomeDigits", kwargs={{rank={rank}}}}}'
    followed = [
        "training.evaluate_every_steps=3",
        f'training.keep_best={{mode="{mode}"}}',
        f"checkpoints.location={folder}",
    ]
    return [OPTIMIZER, tested, *followed]


def best_step(rows):
    """Return the step of the row with the smallest loss."""
    return min(_evaluated(rows), key=lambda row: row.test_loss).step


def worst_step(rows):
    """Return the step of the row with the largest loss."""
    return max(_evaluated(rows), key=lambda row: row.test_loss).step


def _evaluated(rows):
    return [row for row in rows if row.test_loss is not None]


def weights_at(step, configs):
    """Return the weights of the group after so many steps."""
    training = configs[0].training.model_copy(update={"max_steps": step})
    return group_state([config.model_copy(update={"training": training}) for config in configs])


@pytest.mark.parametrize("trainers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_each_member_has_those_of_its_own_best_evaluation(trainers, tmp_path):
    more = [[SHARD, *chosen(rank, tmp_path), "training.max_steps=30"] for rank in range(3)]
    async with running_trainer(*group_of(3)) as near, running_trainer(*group_of(3)) as far:
        configs = [member_of((near, far)[:trainers], rank, size=3, more=more[rank]) for rank in range(3)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    bests = [best_step(result.history) for result in results]
    assert min(bests) < 30, "the weights of the last step come home anyway"
    for best, result in zip(bests, results, strict=True):
        assert result.summary.best_step == best
        assert_same_bits(weights_at(best, configs), dict(result.best))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left of a training that has ended"


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["member", "trainer"])
def test_who_is_killed_and_comes_back_has_those_from_before(killed, tmp_path):
    """The weights of the largest loss, which comes early."""
    more = {rank: [*chosen(rank, tmp_path / f"kept-{rank}", mode="max"), *SLOWLY[rank]] for rank in range(SIZE)}
    with Running(tmp_path, more=more) as running:
        running.assert_whole(running.killed_and_back(killed, 30))
        for rank in range(SIZE):
            folder = tmp_path / f"member-{rank}"
            best = worst_step(read_history(folder))
            assert best < 30
            assert_same_bits(weights_at(best, running.configs), load_file(folder / "best.safetensors"))
