"""Groups of devices over real sockets: agents that train one model at one trainer, compared with one loop."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cloud_trainer.sessions.limits import Limits
from edge_agent.experiment.experiment import Experiment
from edge_agent.training.choosers import Chooser
from isthmus import run_training
from shared import slicing
from shared.errors import ConfigError, ExitCode, RefusedError, UnreachableError
from shared.execution.model_facts import facts_of
from tests.support.experiments import flags
from tests.support.group_flags import (
    ACCEPTING,
    SHARD,
    STEPS,
    group_of,
    member,
    member_flags,
    member_of_two,
    trained,
    trainers_at,
)
from tests.support.group_members import PlainCodecs, group_state
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import GIVE_UP_AT_ONCE, Listening, edge_config, running_trainer, trainer_config

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("nesterov", marks=pytest.mark.slow)])
async def test_two_members_end_with_the_weights_of_one_loop_over_micro_batches(optimizer):
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, optimizer=optimizer, size=2, more=[SHARD]) for rank in range(2)]
        states = await trained(configs)
        assert not server.service.sessions.built
    expected = group_state(configs)
    for state in states:
        assert_same_bits(expected, state)


@pytest.mark.first_case
@pytest.mark.parametrize("more", [[], ["deployment.cut=2"], ["deployment.cut=2", "data.batch_size=2"]])
async def test_members_are_weighed_by_their_labels_that_count(more):
    """Some batches have none at a member."""
    partly = 'data.train={factory="tests.support.samples:PartlyLabelled", kwargs={flat=true}}'
    told = [SHARD, 'training.mean="token"', partly, *more]
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, optimizer="adamw", size=2, more=told) for rank in range(2)]
        states = await trained(configs)
    expected = group_state(configs)
    for state in states:
        assert_same_bits(expected, state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "codecs"),
    [
        ([], None),
        pytest.param(
            ["group.codec=uniform8", "group.weights_codec=uniform8"],
            PlainCodecs("uniform8", down="uniform8"),
            marks=pytest.mark.slow,
        ),
        pytest.param(["group.schedule=dynacomm"], None, marks=pytest.mark.slow),
    ],
)
async def test_members_that_exchange_slices_end_with_the_weights_of_one_loop(more, codecs, monkeypatch):
    monkeypatch.setattr(slicing, "SLICE_BYTES", 2048)
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, optimizer="rmsprop", size=2, more=[SHARD, *more]) for rank in range(2)]
        states = await trained(configs)
    expected = group_state(configs, codecs=codecs)
    for state in states:
        assert_same_bits(expected, state)
    chain = Experiment(configs[0]).built_again()
    assert max(block.slices for block in facts_of(chain, Experiment(configs[0]).recipe, merged=True).blocks) > 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "optimizer"),
    [
        ("uniform8", "adamw"),
        pytest.param("uniform3", "nesterov", marks=pytest.mark.slow),
        pytest.param("topk1", "adamw", marks=pytest.mark.slow),
    ],
)
async def test_gradients_by_a_codec_end_with_the_weights_of_a_loop_that_gives_back_what_it_takes(codec, optimizer):
    async with running_trainer(*group_of(2)) as server:
        more = [SHARD, f"group.codec={codec}"]
        configs = [member(rank, server, optimizer=optimizer, size=2, more=more) for rank in range(2)]
        states = await trained(configs)
    expected = group_state(configs, codecs=PlainCodecs(codec))
    for state in states:
        assert_same_bits(expected, state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "up", "down", "optimizer"),
    [
        pytest.param(1, "raw", "uniform8", "adamw", marks=pytest.mark.slow),
        (2, "uniform8", "uniform8", "nesterov"),
        pytest.param(3, "raw", "fp16", "adamw", marks=pytest.mark.slow),
        pytest.param(2, "uniform4", "uniform16", "adamw", marks=pytest.mark.slow),
    ],
)
async def test_weights_by_a_codec_end_as_those_of_a_loop_that_moves_them_by_what_arrives(size, up, down, optimizer):
    async with running_trainer(*group_of(size)) as server:
        more = [SHARD, f"group.codec={up}", f"group.weights_codec={down}"]
        configs = [member(rank, server, optimizer=optimizer, size=size, more=more) for rank in range(size)]
        states = await trained(configs)
    expected = group_state(configs, codecs=PlainCodecs(up, down=down))
    for state in states:
        assert_same_bits(expected, state)


@pytest.mark.slow
async def test_weights_of_blocks_at_two_trainers_and_behind_different_cuts_are_one_model_by_a_codec():
    coded = [SHARD, "group.weights_codec=uniform8"]
    async with running_trainer(*group_of(2)) as near, running_trainer(*group_of(2)) as far:
        configs = [member_of_two(rank, near, far, size=2, more=coded) for rank in range(2)]
        states = await trained(configs)
    expected = group_state(configs, codecs=PlainCodecs(down="uniform8"))
    async with running_trainer(*group_of(2)) as server:
        cuts = [[*coded, f"deployment.cut={2 + rank}", 'deployment.codec="raw"'] for rank in range(2)]
        states += await trained([member(rank, server, size=2, more=cuts[rank]) for rank in range(2)])
    for state in states:
        assert_same_bits(expected, state)


@pytest.mark.slow
async def test_weights_in_fewer_bits_are_fewer_bytes_on_the_link():
    received = []
    for codec in ("raw", "uniform8"):
        async with running_trainer(*group_of(1)) as server:
            result = await run_training(member(0, server, more=[f"group.weights_codec={codec}"]))
            received.append(result.summary.bytes_down)
    assert received[1] < 0.3 * received[0]


@pytest.mark.slow
async def test_the_weights_that_members_have_are_counted_once_and_in_two_checkpoints(monkeypatch):
    counted = []
    monkeypatch.setattr(Limits, "check_memory", lambda _, count: counted.append(count))
    most = []
    for codec in ("raw", "uniform8"):
        counted.clear()
        async with running_trainer(*group_of(1)) as server:
            result = await run_training(member(0, server, more=[f"group.weights_codec={codec}"]))
        most.append(max(counted))
    parameters = sum(parameter.nbytes for parameter in result.module.parameters())
    assert most[1] - most[0] == 3 * parameters


@pytest.mark.slow
async def test_one_member_equals_the_plain_loop():
    async with running_trainer(*group_of(1)) as server:
        (state,) = await trained([member(0, server, model="cnn")])
    assert_same_bits(plain_state(edge_config(*flags("cnn", "adamw"), f"training.max_steps={STEPS}")), state)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("nesterov", marks=pytest.mark.slow)])
async def test_blocks_at_two_trainers_end_with_the_weights_of_one_loop(optimizer):
    async with running_trainer(*group_of(2)) as near, running_trainer(*group_of(2)) as far:
        configs = [member_of_two(rank, near, far, optimizer=optimizer, size=2, more=[SHARD]) for rank in range(2)]
        states = await trained(configs)
        for server in (near, far):
            assert not server.service.sessions.built
            assert server.service.groups.all[0].step == 0, "the group has ended everywhere"
    expected = group_state(configs)
    for state in states:
        assert_same_bits(expected, state)


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", [0, 2])
async def test_members_with_a_cut_end_with_the_weights_of_one_loop(staleness):
    more = [SHARD, "deployment.cut=2", f"deployment.staleness={staleness}", 'deployment.codec="raw"']
    async with running_trainer(*group_of(2)) as server:
        configs = [member(rank, server, size=2, more=more) for rank in range(2)]
        states = await trained(configs)
    assert_same_bits(*states)
    if staleness == 0:
        assert_same_bits(group_state(configs), states[0])


@pytest.mark.slow
async def test_members_of_two_trainers_divide_the_blocks_alike():
    async with running_trainer(*group_of(2)) as near, running_trainer(*group_of(2)) as far:
        first = asyncio.create_task(run_training(member_of_two(0, near, far)))
        while not far.service.groups.all[0].seats.attached:
            await asyncio.wait({first}, timeout=0.01)
        with pytest.raises(
            RefusedError, match=r"trains with the blocks at this trainer \[.*\], and this member has \["
        ):
            await run_training(member_of_two(1, far, near))
        await asyncio.gather(first, run_training(member_of_two(1, near, far)))


def test_one_norm_of_all_blocks_needs_one_trainer():
    clipped = ['training.optimizer.clip="model"', "training.optimizer.clip_norm=1.0"]
    flags = [*member_flags(0, more=clipped), *trainers_at(near="127.0.0.1:1", far="127.0.0.1:2")]
    with pytest.raises(
        ConfigError, match="whose norm is that of all blocks, and several trainers have them nowhere together"
    ):
        Experiment(edge_config(*flags))


def test_each_trainer_has_a_block():
    many = {f"t{number}": f"127.0.0.1:{number + 1}" for number in range(5)}
    with pytest.raises(ConfigError, match="5 trainers are configured, and the group's model has"):
        Experiment(edge_config(*member_flags(0), *trainers_at(**many)))


@asynccontextmanager
async def first_member(server, **chosen):
    """Have a member of rank 0 train, linked, until the body has brought the others."""
    config = member(0, server, **chosen)
    training = asyncio.create_task(run_training(config))
    (group,) = server.service.groups.all
    while not group.seats.attached:
        await asyncio.wait({training}, timeout=0.01)
        assert not training.done(), training.result()
    yield config
    await training


REFUSED = {
    "another model": (
        {"model": "cnn"},
        'trains with model.factory "shared.model.zoo:mlp", and this member has "shared',
    ),
    "another optimizer": (
        {"optimizer": "sgd"},
        'training.optimizer.name "adamw", and this member has "sgd"',
    ),
    "another seed": ({"more": ["training.seed=1"]}, "trains with training.seed 0, and this member has 1"),
    "another K": ({"more": ["deployment.staleness=2"]}, "trains with deployment.staleness 0, and this member has 2"),
    "other bits of weights": (
        {"more": ["group.weights_codec=uniform8"]},
        'trains with group.weights_codec "raw", and this member has "uniform8"; all members of a group have the same',
    ),
    "a key that the others leave out": (
        {"more": ["training.ema={decay=0.9}"]},
        "trains with training.ema left out, and this member has { decay = 0.9",
    ),
    "other arguments of the model": (
        {"more": ["model.kwargs={depth=2, hidden=24}"]},
        "and this member has { depth = 2, hidden = 24 }; all members of a group have the same",
    ),
    "another size": ({"size": 3}, "group 'line' has 2 members, and this one expects 3"),
}


@pytest.mark.first_case
@pytest.mark.parametrize("case", REFUSED)
async def test_a_member_that_would_train_something_else_is_refused_and_the_group_goes_on(case):
    chosen, sentence = REFUSED[case]
    async with running_trainer(*group_of(2)) as server, first_member(server) as first:
        with pytest.raises(RefusedError, match=sentence) as refusal:
            await run_training(member(1, server, **chosen))
        assert refusal.value.exit_code == ExitCode.REFUSED
        second = member(1, server)
        (state,) = await trained([second])
    assert_same_bits(group_state([first, second]), state)


@pytest.mark.slow
async def test_ranks_that_are_out_of_range_are_refused_and_one_that_is_taken_for_now():
    async with running_trainer(*group_of(2)) as server, first_member(server):
        with pytest.raises(UnreachableError, match="rank 0 of group 'line' is taken by a member that is linked now"):
            await run_training(member(0, server, more=[GIVE_UP_AT_ONCE]))
        with pytest.raises(RefusedError, match="rank 2 is none of group 'line'; the ranks are 0 to 1"):
            await run_training(member(2, server))
        await trained([member(1, server)])


@pytest.mark.slow
async def test_other_frozen_parameters_are_refused(tmp_path):
    frozen = 'model.frozen=["0"]'
    async with running_trainer(*group_of(1)) as server:
        result = await run_training(member(0, server, more=["training.max_steps=1"]))
    next(result.module[0].parameters()).data += 1
    other = tmp_path / "other.safetensors"
    other.write_bytes(result.model)
    async with running_trainer(*group_of(2)) as server, first_member(server, more=[frozen]):
        with pytest.raises(RefusedError, match="trains with parameters that do not learn, in block 0, of"):
            await run_training(member(1, server, more=[frozen, f"training.start_from={other}"]))
        await trained([member(1, server, more=[frozen])])


async def test_a_stranger_learns_nothing_of_a_group():
    sentence = "this trainer has no group 'line' for"
    async with running_trainer(ACCEPTING) as server:
        with pytest.raises(RefusedError, match=sentence):
            await run_training(member(0, server))
    async with running_trainer('groups=[{name="line", size=1, subjects=["somebody"]}]', ACCEPTING) as server:
        with pytest.raises(RefusedError, match=sentence):
            await run_training(member(0, server))
        assert not server.service.sessions.built


def test_a_group_of_nobody_is_no_group():
    with pytest.raises(ConfigError, match=r"groups\.0\.size is 0; it must be an integer of 1 or more"):
        trainer_config(*group_of(0))


async def test_the_steps_and_weights_of_the_first_member_hold():
    async with running_trainer(*group_of(2)) as server, first_member(server) as first:
        result = await run_training(member(1, server, more=["training.max_steps=40", "training.epochs=1"]))
    assert result.summary.steps == STEPS
    assert_same_bits(group_state([first, member(1, server)]), result.module.state_dict())


@pytest.mark.slow
async def test_a_group_that_has_ended_begins_anew_with_its_next_members():
    async with running_trainer(*group_of(1)) as server:
        first, second = [await trained([member(0, server)]) for _ in range(2)]
    assert_same_bits(first[0], second[0])


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [1, pytest.param(3, marks=pytest.mark.slow)])
async def test_members_that_may_be_ahead_end_with_one_and_the_same_model(staleness):
    async with running_trainer(*group_of(3)) as server:
        configs = [member(rank, server, more=[f"deployment.staleness={staleness}"]) for rank in range(3)]
        states = await trained(configs)
    for state in states[1:]:
        assert_same_bits(states[0], state)


@pytest.mark.slow
async def test_gradients_without_numbers_are_refused_and_the_group_waits_for_others():
    ruined = 'data.train={factory="tests.support.samples:NotANumber"}'
    async with running_trainer(*group_of(2)) as server, first_member(server) as first:
        with pytest.raises(RefusedError, match=r"rank 1 gives the gradient of block \d of step 0"):
            await run_training(member(1, server, more=[ruined, 'training.on_nan="warn"']))
        second = member(1, server)
        (state,) = await trained([second])
    assert_same_bits(group_state([first, second]), state)


@pytest.mark.slow
async def test_a_member_keeps_its_placement():
    refused = []

    def ask(deployer):
        deployer.want(replace(deployer.placement, staleness=2), Chooser.OPERATOR)
        refused.append(asyncio.ensure_future(deployer.in_force()))

    async with running_trainer(*group_of(1)) as server:
        config = member(0, server)
        result = await run_training(config, Listening(session_opened=ask))
    assert result.summary.steps == STEPS
    with pytest.raises(RefusedError, match="a member of a group keeps its placement"):
        await refused[0]
