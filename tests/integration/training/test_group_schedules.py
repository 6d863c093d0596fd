"""Schedules on the wire: segments of blocks travel as they are planned, and no schedule changes a bit."""

import json
from dataclasses import replace
from itertools import groupby

import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import SCHEMA
from edge_agent.planning.schedules import STRATEGIES, load_layers
from isthmus import run_training
from shared.errors import ConfigError
from shared.transport.stream.duplex import Duplex
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.support.experiments import flags
from tests.support.group_flags import SHARD, STEPS, group_of, member, member_flags, member_of_two, trained, trainers_at
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
PUSH, PULL = Role.ROLE_WEIGHT_GRADIENT, Role.ROLE_WEIGHTS
BLOCKS = 4


@pytest.fixture
def layers(tmp_path):
    """Return a file of layers for which the best segments are neither all nor one by one."""
    rows = [(0.1, 0.3, 0.2, 0.1), (0.2, 0.1, 0.4, 0.3), (0.1, 0.2, 0.3, 0.1), (0.3, 0.3, 0.2, 0.2)]
    keys = ("pull_seconds", "forward_seconds", "backward_seconds", "push_seconds")
    named = [{"name": str(block), "bytes": 100, **dict(zip(keys, row, strict=True))} for block, row in enumerate(rows)]
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"schema": SCHEMA, "model": "mlp", "message_seconds": 0.15, "layers": named}))
    return path


@pytest.fixture
def messages(monkeypatch):
    """Record each message with gradients or weights of blocks that any end sends: step, role and blocks, in order."""
    sent, send = [], Duplex.send

    async def recording(stream, *tensors, message=None):
        keys = [tensor.key for tensor in tensors]
        if keys[0].role in (PUSH, PULL):
            assert len({(key.step, key.role) for key in keys}) == 1
            step = keys[0].step - (keys[0].role == PULL)
            sent.append((step, keys[0].role, [block for block, _ in groupby(key.block for key in keys)]))
        await send(stream, *tensors, message=message)

    monkeypatch.setattr(Duplex, "send", recording)
    return sent


def scheduled(strategy, layers):
    """Return a member's flags for a strategy."""
    return [f'group.schedule="{strategy}"', *([f"group.layers={layers}"] if strategy in ("ibatch", "dynacomm") else [])]


@pytest.mark.first_case
@pytest.mark.parametrize("strategy", list(STRATEGIES))
async def test_messages_are_those_of_the_schedule_and_no_bit_changes(strategy, layers, messages):
    async with running_trainer(*group_of(1)) as server:
        (state,) = await trained([member(0, server, more=scheduled(strategy, layers))])
    assert_same_bits(plain_state(edge_config(*flags("mlp", "adamw"), f"training.max_steps={STEPS}")), state)
    planned = STRATEGIES[strategy](load_layers(layers))
    for step in range(STEPS):
        of_step = [(role, blocks) for at, role, blocks in messages if at == step]
        pushed = [blocks for role, blocks in of_step if role == PUSH]
        pulled = [blocks for role, blocks in of_step if role == PULL]
        if planned.push_segments is None or planned.pull_segments is None:
            assert sorted(block for blocks in pushed for block in blocks) == list(range(BLOCKS))
            assert sorted(block for blocks in pulled for block in blocks) == list(range(BLOCKS))
            continue
        assert pushed == [list(reversed(range(*segment))) for segment in planned.push_segments]
        assert pulled == [list(range(*segment)) for segment in planned.pull_segments]
        roles = [role for role, _ in of_step]
        assert roles == [PUSH] * len(pushed) + [PULL] * len(pulled), "nothing is pulled before all is pushed"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", list(STRATEGIES))
async def test_members_with_a_schedule_end_with_the_weights_of_one_loop(strategy, layers):
    async with running_trainer(*group_of(2)) as near, running_trainer(*group_of(2)) as far:
        configs = [
            member_of_two(rank, near, far, size=2, more=[SHARD, *scheduled(strategy if rank else "flow", layers)])
            for rank in range(2)
        ]
        states = await trained(configs)
    for state in states:
        assert_same_bits(group_state(configs), state)


async def test_a_trainer_refuses_segments_that_leave_a_block_out():
    async with running_trainer(*group_of(1)) as server:
        config = member(0, server, more=['group.schedule="sequential"'])
        experiment = Experiment(config)
        wrong = replace(experiment.placement, exchange=replace(experiment.placement.exchange, pull=((0, 2), (3, 4))))
        with pytest.raises(ConfigError, match=r"exchange.pull is .* must have each of the 4 blocks once"):
            experiment.check(wrong)
        await run_training(config)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (['group.schedule="best"'], "group.schedule is"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(more, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Experiment(edge_config(*member_flags(0, more=more), *trainers_at(near="127.0.0.1:1")))


def test_layers_of_another_model_are_refused(layers):
    document = json.loads(layers.read_text())
    document["layers"].pop()
    layers.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="has 3 layers, and the model 4 blocks"):
        Experiment(edge_config(*member_flags(0, more=scheduled("ibatch", layers)), *trainers_at(near="127.0.0.1:1")))
