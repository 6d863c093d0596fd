"""Models as people write them, over real sockets: a chain of three and labels that stay end with the bits of one process."""

import json

import pytest

from isthmus import run_training
from shared.placement import AGENT, Placement
from tests.support.crossed import thinned
from tests.support.models.users.tasks import TASKS
from tests.support.placement_kinds import addresses_of, running_trainers, trainers_flag
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config
from tests.support.trained import BATCH, Trained

pytestmark = [pytest.mark.zoo, pytest.mark.usefixtures("one_thread")]
STEPS, TRAINERS = 5, ("near", "far")
USERS = "tests.support.models.users.tasks"


def task_flags(name):
    task = TASKS[name]
    kind = task.optimizer
    clip = "" if kind.clip_norm is None else f", clip_norm={kind.clip_norm}"
    momentum = f", momentum={kind.momentum}" if kind.name == "sgd" else ""
    return [
        f'model.factory="{USERS}:model"',
        f"model.kwargs={{name={json.dumps(name)}}}",
        f'data.train={{factory="{USERS}:Samples", kwargs={{name={json.dumps(name)}}}}}',
        f"data.batch_size={BATCH}",
        f'training.loss="{task.loss}"',
        f'training.optimizer={{name="{kind.name}", learning_rate={kind.learning_rate}{momentum}{clip}}}',
        f"training.max_steps={STEPS}",
        *([] if task.output is None else [f'model.output="{task.output}"']),
    ]


def placed_flags(placement: Placement):
    ranges = {name: [f"{tile.first}:{tile.stop}" for tile in placement.tiles_of(name)] for name in placement.workers}
    others = [name for name in ranges if name != AGENT]
    return others, [
        *(f"placement.{name}={json.dumps(each)}" for name, each in ranges.items()),
        f"privacy.inputs_to={json.dumps(others)}",
        f"privacy.gradients_to={json.dumps(others)}",
    ]


def in_the_middle(placements):
    return [placements[len(placements) // 2]] if placements else []


def kinds(name):
    """A chain of three, and labels that stay; one cut of a model of two blocks."""
    every = list(Trained(TASKS[name]).placements())
    stays = [each for each in every if each.workers == (AGENT, "near") and len(each.tiles) == 3]
    chains = [each for each in every if len(each.workers) == 3 and len(each.tiles) == 3]
    return [*in_the_middle(stays), *in_the_middle(chains)] or every[:1]


@pytest.mark.parametrize("name", thinned(zip(TASKS)))
async def test_training_over_sockets_equals_the_plain_loop(name):
    expected, placements = plain_state(edge_config(*task_flags(name))), kinds(name)
    assert placements
    async with running_trainers() as servers:
        for placement in placements:
            names, placed = placed_flags(placement)
            addresses = {each: addresses_of(servers)[each] for each in names}
            result = await run_training(edge_config(*task_flags(name), trainers_flag(addresses, names), *placed))
            assert_same_bits(expected, result.module.state_dict())
