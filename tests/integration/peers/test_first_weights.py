"""First weights with which nobody can train are their member's alone: the others begin with their own."""

import pytest
import torch
from safetensors.torch import save_file

from edge_agent.experiment.experiment import Experiment
from isthmus import run_training
from shared.errors import ExitCode, IsthmusError, RefusedError
from tests.support.group_flags import SHARD, group_of, member, member_of_two, trained
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def filled(path, config, value, block=None):
    """Write the model of a member, filled with one number from a block on, and return the flag that begins with it."""
    state = Experiment(config).built_again().module.state_dict()
    bad = {
        name: torch.full_like(tensor, value) if block is None or int(name.partition(".")[0]) >= block else tensor
        for name, tensor in state.items()
    }
    save_file(bad, path)
    return f"training.start_from={path}"


async def test_weights_that_are_not_finite_are_refused_to_the_member_that_brings_them(tmp_path):
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        bad = filled(tmp_path / "nan.safetensors", configs[0], float("nan"))
        sentence = "cannot begin with the weights of rank 0: .* holds numbers that are not finite"
        with pytest.raises(RefusedError, match=sentence) as refusal:
            await run_training(member(0, server, size=2, more=[SHARD, bad]))
        assert refusal.value.exit_code is ExitCode.REFUSED
        states = await trained(configs)
    for state in states:
        assert_same_bits(group_state(configs), state)


async def test_weights_from_which_no_gradient_is_finite_go_with_their_member(tmp_path):
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        bad = filled(tmp_path / "huge.safetensors", configs[0], 3e38)
        with pytest.raises(IsthmusError):
            await run_training(member(0, server, size=2, more=[SHARD, bad]))
        assert server.service.groups.all[0].life == 0
        states = await trained(configs)
    for state in states:
        assert_same_bits(group_state(configs), state)


@pytest.mark.slow
async def test_weights_of_the_blocks_of_a_second_trainer_are_refused_there_and_forgotten_at_the_first(tmp_path):
    async with running_trainer(*group_of(2)) as near, running_trainer(*group_of(2)) as far:
        configs = [member_of_two(rank, near, far, size=2, more=[SHARD]) for rank in range(2)]
        last = max(Experiment(configs[0]).placement.owners)
        bad = filled(tmp_path / "nan.safetensors", configs[0], float("nan"), last)
        with pytest.raises(RefusedError, match="cannot begin with the weights of rank 0"):
            await run_training(member_of_two(0, near, far, size=2, more=[SHARD, bad]))
        states = await trained(configs)
    for state in states:
        assert_same_bits(group_state(configs), state)
