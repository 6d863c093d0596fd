"""Whole runs with both sides on a GPU, where there is one."""

import gc
from contextlib import closing

import pytest
import torch

from edge_agent.experiment.workload import Workload
from isthmus import run_training
from tests.support.commands import MLP
from tests.support.experiments import flags
from tests.support.placement_kinds import (
    BATCH_SIZE,
    RANGES,
    SHARED,
    addresses_of,
    flags_of,
    permitted,
    running_trainers,
)
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


def test_what_a_worker_process_reads_is_in_pinned_memory():
    with (
        closing(Workload(edge_config(*RUN, "data.workers=1"))) as workload,
        closing(workload.loader.iterate(0, 1)) as batches,
    ):
        assert next(batches).inputs.is_pinned()


async def test_two_runs_end_with_the_same_bits_and_with_a_module_on_one_device():
    first, second = await trained(), await trained()
    assert_same_bits(first.module.state_dict(), second.module.state_dict())
    assert {value.device.type for value in first.module.state_dict().values()} == {"cpu"}


async def test_a_move_of_the_cut_changes_no_bit():
    stayed, moved = await trained(), await trained(move=(6, 2))
    assert_same_bits(stayed.module.state_dict(), moved.module.state_dict())


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("kind", RANGES)
async def test_every_placement_equals_the_device_alone_on_the_gpu(kind, model, tmp_path):
    chosen = [*flags(model, "adamw"), "compute.device=cuda", f"data.batch_size={BATCH_SIZE}"]
    alone = await run_training(edge_config(*chosen, "trainers=[]"))
    async with running_trainers(device="cuda") as servers:
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, model)]
        result = await run_training(edge_config(*chosen, *placed))
    assert_same_bits(alone.module.state_dict(), result.module.state_dict())


@pytest.mark.parametrize("kind", SHARED)
async def test_a_run_of_shared_blocks_ends_with_the_same_bits_twice_on_the_gpu(kind, tmp_path):
    chosen = [*flags("cnn", "adamw"), "compute.device=cuda", f"data.batch_size={BATCH_SIZE}"]
    async with running_trainers(device="cuda") as servers:
        placed = [*flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "cnn")]
        first, second = [await run_training(edge_config(*chosen, *placed)) for _ in range(2)]
    assert_same_bits(first.module.state_dict(), second.module.state_dict())


async def test_a_run_leaves_no_memory_behind_on_the_gpu():
    await trained()  # what torch and its libraries keep for good is there now
    gc.collect()
    before = torch.cuda.memory_allocated()
    await trained(move=(6, 2))
    gc.collect()
    assert torch.cuda.memory_allocated() <= before
