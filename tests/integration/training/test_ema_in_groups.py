"""The average of a group's weights has the bits of torch's, at every member, whoever is killed."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file

from isthmus import run_training
from shared import slicing
from tests.support.group_flags import SHARD, group_of, member_of
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import running_trainer
from tests.support.running_group import SIZE, SLOWLY, Running

pytestmark = pytest.mark.usefixtures("one_thread")

EMA = "training.ema={decay=0.9}"


@pytest.mark.parametrize("trainers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "told",
    [
        {},
        {"more": ["deployment.cut=2"]},
        pytest.param({"more": ["deployment.staleness=2"]}, marks=pytest.mark.slow),
        pytest.param({"more": ['group.weights_codec="uniform8"']}, marks=pytest.mark.slow),
        pytest.param({"more": ["training.optimizer.clip_norm=0.1"]}, marks=pytest.mark.slow),
    ],
    ids=["", "with a cut", "with late gradients", "with weights by a codec", "with clipping"],
)
async def test_all_members_have_that_of_one_loop(told, trainers, monkeypatch):
    """Blocks go in slices, and so does their average."""
    monkeypatch.setattr(slicing, "SLICE_BYTES", 6000)
    more = [SHARD, EMA, *told.get("more", [])]
    if trainers == 2 and "deployment.cut=2" in more:
        pytest.skip("a cut needs one trainer")
    async with running_trainer(*group_of(2)) as near, running_trainer(*group_of(2)) as far:
        configs = [member_of((near, far)[:trainers], rank, size=2, more=more) for rank in range(2)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    if more[2:] in ([], ["deployment.cut=2"], ["training.optimizer.clip_norm=0.1"]):
        averages = {}
        assert_same_bits(group_state(configs, averages=averages), results[0].module.state_dict())
        assert_same_bits(averages, dict(results[0].average))
    assert_same_bits(dict(results[0].average), dict(results[1].average))
    weights = results[0].module.state_dict()
    assert any(not torch.equal(weights[name], value) for name, value in results[0].average.items()), (
        "no copy of the weights"
    )


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["member", "trainer"])
def test_who_is_killed_and_comes_back_has_it_too(killed, tmp_path):
    more = {rank: [EMA, *SLOWLY[rank]] for rank in range(SIZE)}
    with Running(tmp_path, more=more) as running:
        running.assert_whole(running.killed_and_back(killed, 20))
        averages = {}
        group_state(running.configs, averages=averages)
        for rank in range(SIZE):
            assert_same_bits(averages, load_file(tmp_path / f"member-{rank}" / "ema.safetensors"))
