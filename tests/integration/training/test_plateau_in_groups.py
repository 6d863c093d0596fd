"""A rate that falls in a group is one for all members: it falls as soon as the evaluations of any of them say so."""

import asyncio
from itertools import pairwise

import pytest

from isthmus import run_training
from shared import slicing
from tests.support.group_flags import SHARD, group_of, member_of
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import running_trainer
from tests.support.running_group import SIZE, SLOWLY, Running

pytestmark = pytest.mark.usefixtures("one_thread")

FOLLOWED = [
    'training.schedule={name="plateau", factor=0.6, patience=1, threshold=0.02}',
    'training.optimizer={name="sgd", learning_rate=0.7, momentum=0.5, groups=[{match=["*bias"], learning_rate=0.9}]}',
]
"""Steps that are too large, so that losses go up and down."""


def chosen(rank):
    """Return the flags of a member, which evaluates by samples of its own."""
    tested = f'data.test={{factory="tests.support.samples:SomeDigits", kwargs={{rank={rank}}}}}'
    return [SHARD, *FOLLOWED, tested, "training.evaluate_every_steps=3", "training.max_steps=36"]


@pytest.mark.parametrize("trainers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_three_members_end_with_the_weights_of_one_loop_at_the_lowest_rate_of_any(trainers, monkeypatch):
    """Members that may be unlike in their falls show one rate, with slices of blocks and with two trainers."""
    monkeypatch.setattr(slicing, "SLICE_BYTES", 6000)
    async with running_trainer(*group_of(3)) as near, running_trainer(*group_of(3)) as far:
        configs = [member_of((near, far)[:trainers], rank, size=3, more=chosen(rank)) for rank in range(3)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    expected = group_state(configs)
    for result in results:
        assert_same_bits(expected, result.module.state_dict())
    rates = [[row.learning_rate for row in result.history] for result in results]
    assert rates[0] == rates[1] == rates[2]
    assert len(set(rates[0])) > 2, "it falls more than once"
    assert all(later <= earlier for earlier, later in pairwise(rates[0]))
    assert len({result.history[-1].test_loss for result in results}) == 3, "each evaluates by itself"


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["member", "trainer"])
def test_who_is_killed_and_comes_back_has_the_rate_of_the_group(killed, tmp_path):
    more = {rank: [*chosen(rank), *SLOWLY[rank]] for rank in range(SIZE)}
    with Running(tmp_path, more=more) as running:
        running.assert_whole(running.killed_and_back(killed, 20))
