"""The first member whose evaluations say so ends the training of its group: all end after the same step with the same bits."""

import asyncio
import json
import signal

import pytest
from safetensors.torch import load_file

from edge_agent.training.history import read_history
from isthmus import run_training
from shared import slicing
from shared.errors import ConfigError, ExitCode, RefusedError
from tests.integration.recovery.test_group_joining import NEWCOMER, Joined
from tests.support.group_flags import ACCEPTING, SHARD, group_of, member, member_flags, member_of, member_of_two
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import edge_config, running_trainer
from tests.support.running_group import SIZE, SLOWLY, STEPS, Running

pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING = [
    'training.optimizer={name="sgd", learning_rate=0.7, momentum=0.5}',
    "training.evaluate_every_steps=3",
    "training.evaluate_every_epochs=0",
]
"""Steps that are too large, so that losses go up and down."""
ENDS = 'training.early_stop={metric="loss", patience=3, min_delta=0.01}'
PATIENT = 'training.early_stop={metric="loss", patience=6}'


def chosen(rank, *more):
    """Return the flags of a member, which evaluates by samples of its own."""
    tested = f'data.test={{factory="tests.support.samples:SomeDigits", kwargs={{rank={rank}}}}}'
    return [*TRAINING, tested, f"training.max_steps={STEPS}", *more]


def evaluated(result):
    """List the steps of a member's rows that have an evaluation."""
    return [row.step for row in result.history if row.test_loss is not None]


def evaluated_until(steps):
    return list(range(3, steps + 1, 3))


def judging(rank):
    """Return the flags of one of several members that may end the training."""
    return chosen(rank, ENDS, SHARD)


@pytest.mark.parametrize("trainers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_three_members_end_where_one_loop_does_in_which_any_of_them_ends_it(trainers, monkeypatch):
    """With slices of blocks and with two trainers; they evaluate on samples of their own."""
    monkeypatch.setattr(slicing, "SLICE_BYTES", 6000)
    async with running_trainer(*group_of(3)) as near, running_trainer(*group_of(3)) as far:
        more = [chosen(rank, ends, SHARD) for rank, ends in enumerate((PATIENT, ENDS, PATIENT))]
        configs = [member_of((near, far)[:trainers], rank, size=3, more=more[rank]) for rank in range(3)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    expected = group_state(configs)
    (steps,) = {result.summary.steps for result in results}
    assert 6 < steps < STEPS
    for result in results:
        assert_same_bits(expected, result.module.state_dict())
        assert evaluated(result) == evaluated_until(steps)
        assert result.history[-1].samples == results[1].history[-1].samples, "each has done all of these steps"
        assert result.history[-1].train_loss is not None


@pytest.mark.slow
async def test_best_weights_average_and_plateau_are_those_of_the_training_that_ends(tmp_path):
    also = [
        "training.ema={decay=0.9}",
        'training.schedule={name="plateau", factor=0.9, patience=1, threshold=0.02}',
        "training.keep_best={}",
        f"checkpoints.location={tmp_path}",
    ]
    more = [chosen(rank, ends, SHARD, *also) for rank, ends in enumerate((PATIENT, ENDS, PATIENT))]
    async with running_trainer(*group_of(3)) as near, running_trainer(*group_of(3)) as far:
        configs = [member_of_two(rank, near, far, size=3, more=more[rank]) for rank in range(3)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    averages = {}
    expected = group_state(configs, averages=averages)
    (steps,) = {result.summary.steps for result in results}
    assert 6 < steps < STEPS
    assert any(result.summary.best_step < steps for result in results)
    for result in results:
        assert_same_bits(expected, result.module.state_dict())
        assert_same_bits(averages, dict(result.average))
        before = configs[0].training.model_copy(update={"max_steps": result.summary.best_step})
        best = group_state([config.model_copy(update={"training": before}) for config in configs])
        assert_same_bits(best, dict(result.best))


async def test_one_member_that_judges_ends_the_training_of_others_that_do_not_evaluate_or_are_ahead():
    async with running_trainer(*group_of(3)) as server:
        ahead = ["deployment.staleness=1"]
        more = [chosen(rank, SHARD, *ahead, *([ENDS] if rank == 1 else [])) for rank in range(3)]
        more[2].append("training.evaluate_every_steps=1000")
        configs = [member(rank, server, size=3, more=more[rank]) for rank in range(3)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    (steps,) = {result.summary.steps for result in results}
    assert 6 < steps < STEPS
    for result in results[1:]:
        assert_same_bits(results[0].module.state_dict(), result.module.state_dict())
    assert evaluated(results[0]) == evaluated(results[1]) == evaluated_until(steps)


async def test_a_member_without_a_test_set_follows_the_evaluations_of_another():
    ends = 'training.early_stop={metric="loss", patience=2, min_delta=0.1}'
    follows = [ends, 'training.schedule={name="plateau", factor=0.9, patience=0, threshold=0.02}']
    async with running_trainer(*group_of(2)) as server:
        configs = [
            member(0, server, size=2, more=chosen(0, SHARD, *follows)),
            member(1, server, size=2, more=[TRAINING[0], f"training.max_steps={STEPS}", SHARD, *follows]),
        ]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    expected = group_state(configs)
    assert 6 < results[0].summary.steps < STEPS
    for result in results:
        assert_same_bits(expected, result.module.state_dict())
    assert (len(evaluated(results[0])), evaluated(results[1])) == (results[0].summary.steps // 3, [])
    assert results[0].history[-1].learning_rate < results[0].history[0].learning_rate


async def test_a_member_that_does_not_evaluate_has_a_row_of_the_end_that_another_finds_within_an_epoch():
    async with running_trainer(*group_of(2)) as server:
        configs = [
            member(0, server, size=2, more=chosen(0, SHARD, ENDS)),
            member(1, server, size=2, more=[TRAINING[0], f"training.max_steps={STEPS}", SHARD]),
        ]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    judging, other = (result.history[-1] for result in results)
    assert (other.step, other.samples) == (judging.step, judging.samples) == (results[0].summary.steps, judging.samples)
    assert judging.step < STEPS
    assert other.train_loss is not None


async def test_a_group_in_which_nobody_evaluates_has_all_of_its_steps_and_one_rate():
    async with running_trainer(*group_of(1)) as server:
        more = [ENDS, 'training.schedule={name="plateau", patience=0}', "training.max_steps=30"]
        result = await run_training(member(0, server, size=1, more=more))
    assert result.summary.steps == 30
    assert len({row.learning_rate for row in result.history}) == 1


def test_a_member_without_a_test_set_cannot_keep_the_best_weights():
    with pytest.raises(ConfigError, match=r"training\.keep_best follows evaluations and data\.test is left out"):
        edge_config(*member_flags(0, size=2, more=["training.keep_best={}", ENDS]))


def assert_ended_early(running, members):
    """Wait for the members, compare their models with those of one loop, and return the step after which they ended."""
    running.assert_whole(members)
    found = [running.folder / f"member-{rank}" for rank in range(len(members))]
    (steps,) = {json.loads((each / "summary.json").read_text())["steps"] for each in found}
    assert 6 < steps < STEPS
    for each in found:
        assert read_history(each)[-1].step == steps
    return steps


ALL_JUDGING = {rank: judging(rank) for rank in range(SIZE)}


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["member", "trainer"])
def test_who_is_killed_before_ends_with_the_others(killed, tmp_path):
    slowly = {rank: [*judging(rank), *SLOWLY[rank]] for rank in range(SIZE)}
    with Running(tmp_path, more=slowly) as running:
        assert_ended_early(running, running.killed_and_back(killed, 6))


@pytest.mark.slow
@pytest.mark.parametrize("trainers", [("near",), ("near", "far")])
@pytest.mark.parametrize(
    "point",
    [
        "cloud_trainer.groups.trained_group:TrainedGroup.leave",
        "cloud_trainer.groups.merging:Merging.end",
        "cloud_trainer.groups.group_store:GroupStore.note_finished",
    ],
)
def test_the_deciding_trainer_may_be_killed_before_it_decides_and_after(point, trainers, tmp_path):
    with Running(tmp_path, trainers, more=ALL_JUDGING) as running:
        process = running.trainer_killed_at(point)
        for name in trainers[1:]:
            running.trainer(name)
        members = [running.member(rank) for rank in range(SIZE)]
        assert process.wait(60) == -signal.SIGKILL
        running.trainer()
        assert_ended_early(running, members)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "cloud_trainer.groups.trained_group:TrainedGroup.leave",
        "cloud_trainer.groups.merging:Merging.end",
        "cloud_trainer.groups.group_store:GroupStore.note_finished",
    ],
)
def test_another_trainer_may_be_killed_before_it_hears_of_the_end_and_after(point, tmp_path):
    trainers = ("near", "far")
    with Running(tmp_path, trainers, more=ALL_JUDGING) as running:
        _, near = running.trainer("near")
        process = running.trainer_killed_at(point, "far")
        members = [running.member(rank) for rank in range(SIZE)]
        assert process.wait(60) == -signal.SIGKILL
        running.trainer("far")
        assert_ended_early(running, members)
        near.first_event("a group has ended")


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
def test_the_member_that_ends_the_training_may_be_killed_before_and_between_its_trainers(nth, tmp_path):
    """One of two judges; the other hears of the end from the deciding trainer."""
    trainers = ("near", "far")
    with Running(tmp_path, trainers, more={0: chosen(0, SHARD), 1: judging(1)}) as running:
        said = [running.trainer(name)[1] for name in trainers]
        other = running.member(0)
        process = running.member_killed_at("edge_agent.sessions.trainer_worker:TrainerWorker.leave_group", 1, nth)
        assert process.wait(60) == -signal.SIGKILL
        assert_ended_early(running, [other, running.member(1)])
        for each in said:
            each.first_event("a group has ended")


@pytest.mark.slow
def test_a_member_that_has_joined_late_ends_with_the_others(tmp_path):
    with Joined(tmp_path, more=chosen(0, ENDS), before=96) as running:
        _, said = running.trainer()
        members = [running.member(rank) for rank in range(SIZE)]
        said.first_event("a member begins", least_step=0)
        newcomer, _ = running.newcomer(said)
        for process, last in [*members, newcomer]:
            assert process.wait(120) == 0, last
        said.first_event("a group has ended")
        first, *others = (load_file(tmp_path / f"member-{rank}" / "model.safetensors") for rank in range(SIZE + 1))
        for other in others:
            assert_same_bits(first, other)
        steps = {
            json.loads((tmp_path / f"member-{rank}" / "summary.json").read_text())["steps"] for rank in range(SIZE + 1)
        }
        assert len(steps) == 1
        assert steps.pop() < STEPS


@pytest.mark.slow
def test_a_member_that_comes_back_after_the_end_has_the_result_and_a_newcomer_is_refused(tmp_path):
    with Joined(tmp_path, more=chosen(0, ENDS)) as running:
        running.gate.touch()
        _, said = running.trainer()
        first = running.member(0)
        away = running.member_killed_at("edge_agent.sessions.open_session:OpenSession.collect", 1, 2)
        assert away.wait(60) == -signal.SIGKILL
        assert first[0].wait(60) == 0, first[1]
        newcomer, sentence = running.member(NEWCOMER)
        assert newcomer.wait(60) == ExitCode.REFUSED
        assert "of which none is left that rank 2 could take part in" in str(sentence)
        running.configs.pop()
        assert_ended_early(running, [first, running.member(1)])
        said.first_event("a group has ended")


async def test_a_group_that_leaves_out_late_members_refuses_it_before_anything_is_trained():
    group = 'groups=[{name="line", size=1, leave_out_seconds=3.0}]'
    async with running_trainer(group, ACCEPTING) as server:
        config = member(0, server, size=1, more=chosen(0, ENDS, SHARD))
        with pytest.raises(RefusedError, match="leave_out_seconds") as refused:
            await run_training(config)
    assert "training.early_stop" in str(refused.value)
