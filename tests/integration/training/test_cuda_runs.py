"""Whole runs with both sides on a GPU, where there is one."""

import pytest
import torch

from edge_agent import run_training
from tests.support.commands import MLP
from tests.support.plain import assert_same_bits
from tests.support.running import Listening, cut_at, edge_config, running_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RUN = [*MLP, "training.max_steps=12", "compute.device=cuda"]


async def trained(*flags, move=None):
    """A run with both sides on the GPU; move: a step, and the cut from there on."""
    deployers = []

    def on_progress(progress):
        if move is not None and progress.steps == move[0]:
            cut_at(deployers[0], move[1])

    async with running_trainer("compute.device=cuda") as server:
        config = edge_config(*RUN, *flags, f"trainer.address={server.address}")
        return await run_training(config, Listening(on_progress, deployers.append))


async def test_two_runs_end_with_the_same_bits_and_with_a_module_on_one_device():
    first, second = await trained(), await trained()
    assert_same_bits(first.module.state_dict(), second.module.state_dict())
    assert {value.device.type for value in first.module.state_dict().values()} == {"cpu"}


async def test_a_move_of_the_cut_changes_no_bit():
    stayed, moved = await trained(), await trained(move=(6, 2))
    assert_same_bits(stayed.module.state_dict(), moved.module.state_dict())


async def test_a_run_leaves_no_memory_behind_on_the_gpu():
    await trained()  # what torch and its libraries keep for good is there now
    before = torch.cuda.memory_allocated()
    await trained(move=(6, 2))
    assert torch.cuda.memory_allocated() == before
