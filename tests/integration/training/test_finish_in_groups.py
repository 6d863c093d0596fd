"""A member that is asked to finish ends the training of its group: all end after the same step, each with its results."""

import asyncio
import json
import signal
from contextlib import asynccontextmanager

import grpc
import pytest

from edge_agent.control.service import SERVICE
from edge_agent.main import app as agent_app
from edge_agent.training.events import RolledBack
from edge_agent.training.history import read_history
from isthmus import run_training
from shared import slicing
from shared.transport.rpc.contract import Stub
from shared.wire.isthmus.v1 import control_pb2 as pb
from tests.support import told
from tests.support.commands import command
from tests.support.group_flags import ACCEPTING, SHARD, group_of, member, member_of, member_of_two
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import Listening, running_trainer
from tests.support.running_group import SIZE, SLOWLY, STEPS, Running

pytestmark = pytest.mark.usefixtures("one_thread", "_forgotten")
FINISH = pb.EdgeControlServiceDrainRequest(finish=True)
ENDLESS = ["training.epochs=10000", "training.max_steps=10000"]
AFTER = 7
"""Step after which a callback asks to finish."""


@pytest.fixture
def _forgotten():
    told.reset()


def evaluating(rank, every=5):
    """Return the flags of a member that evaluates by samples of its own."""
    tested = f'data.test={{factory="tests.support.samples:SomeDigits", kwargs={{rank={rank}}}}}'
    return [tested, f"training.evaluate_every_steps={every}", "training.evaluate_every_epochs=0"]


def asking(after=AFTER):
    return f'training.callbacks=[{{name="tests.support.told:Keeper", kwargs={{asks="finish", after={after}}}}}]'


def limited(configs, steps):
    """Return the configurations of a group that does so many steps."""
    training = configs[0].training.model_copy(update={"max_steps": steps})
    return [config.model_copy(update={"training": training}) for config in configs]


@asynccontextmanager
async def operated(socket):
    """The control service of the member at a socket."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel, asyncio.timeout(120):
        yield Stub(SERVICE, channel)


def assert_ended_together(results):
    """Return the steps after which all have ended, each with a row of the end; they have the same weights."""
    (steps,) = {result.summary.steps for result in results}
    for result in results:
        assert (result.history[-1].step, result.history[-1].samples) == (steps, results[0].history[-1].samples)
        assert_same_bits(results[0].module.state_dict(), result.module.state_dict())
    return steps


@pytest.mark.parametrize("trainers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_three_members_end_where_one_of_them_is_asked_with_what_a_loop_of_that_many_steps_has(
    trainers, monkeypatch, tmp_path
):
    """With slices of blocks, and with two trainers; the asked one does not decide anything else."""
    monkeypatch.setattr(slicing, "SLICE_BYTES", 6000)
    also = ["training.ema={decay=0.9}", "training.keep_best={}", f"checkpoints.location={tmp_path}"]
    more = [[*evaluating(rank), *ENDLESS, *also, SHARD, *([asking()] if rank == 1 else [])] for rank in range(3)]
    async with running_trainer(*group_of(3)) as near, running_trainer(*group_of(3)) as far:
        configs = [member_of((near, far)[:trainers], rank, size=3, more=more[rank]) for rank in range(3)]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    steps = assert_ended_together(results)
    assert AFTER <= steps < 10000
    averages = {}
    assert_same_bits(group_state(limited(configs, steps), averages=averages), results[0].module.state_dict())
    assert [result.summary.finished_of_steps for result in results] == [None, 10000, None]
    for result in results:
        assert [row.step for row in result.history if row.test_loss is not None] == sorted({*range(5, steps, 5), steps})
        assert result.history[-1].train_loss is not None
        assert_same_bits(averages, dict(result.average))
        assert_same_bits(group_state(limited(configs, result.summary.best_step)), dict(result.best))


@pytest.mark.slow
@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
@pytest.mark.parametrize("staleness", [1, 3])
async def test_members_that_are_ahead_end_where_one_of_them_or_each_is_asked(staleness, asked):
    more = [f"deployment.staleness={staleness}", *ENDLESS, SHARD]
    async with running_trainer(*group_of(2)) as near, running_trainer(*group_of(2)) as far:
        configs = [
            member_of_two(rank, near, far, size=2, more=[*more, *([asking()] if rank in asked else [])])
            for rank in range(2)
        ]
        results = await asyncio.gather(*(run_training(config) for config in configs))
    assert AFTER <= assert_ended_together(results) < 10000
    assert any(result.summary.finished_of_steps for result in results)


async def test_one_that_stands_still_ends_the_group_there(tmp_path):
    socket, begun = tmp_path / "a.sock", asyncio.Event()

    def see(now):
        if now.steps:
            begun.set()

    async with running_trainer(*group_of(2)) as server, operated(socket) as agent:
        controlled = [*evaluating(0), f"control.listen=unix:{socket}"]
        configs = [
            member(rank, server, size=2, more=[*ENDLESS, SHARD, *(controlled if rank == 0 else [])]) for rank in (0, 1)
        ]
        runs = asyncio.gather(run_training(configs[0], Listening(see)), run_training(configs[1]))
        await begun.wait()
        count = (await agent.Pause(pb.PauseRequest())).step
        await asyncio.to_thread(command, agent_app, "drain", "--finish", f"--control=unix:{socket}")
        results = await runs
    assert assert_ended_together(results) == count
    assert results[0].history[-1].test_loss is not None
    assert_same_bits(group_state(limited(configs, count)), results[1].module.state_dict())


@pytest.mark.slow
async def test_a_member_that_comes_back_is_asked_before_others_have_all_that_it_had_given_ahead(tmp_path):
    """The first member stands still, and the second has given gradients of later steps, when its session ends."""
    ahead, sockets = 3, [tmp_path / f"{rank}.sock" for rank in range(2)]
    flags = [f"deployment.staleness={ahead}", *ENDLESS, SHARD]
    trained, begun, begun_at = asyncio.Event(), asyncio.Event(), []

    def came_back(event):
        begun_at.append(event.step)
        begun.set()

    async with running_trainer(*group_of(2)) as server, operated(sockets[0]) as still, operated(sockets[1]) as agent:
        configs = [
            member(rank, server, size=2, more=[*flags, f"control.listen=unix:{sockets[rank]}"]) for rank in range(2)
        ]
        first = asyncio.create_task(
            run_training(configs[0], Listening(lambda now: trained.set() if now.steps else None))
        )
        second = asyncio.create_task(run_training(configs[1]))
        await trained.wait()
        await still.Pause(pb.PauseRequest())
        status = pb.EdgeControlServiceGetStatusRequest()
        while (await agent.GetStatus(status)).status.batches_in_flight <= ahead:
            await asyncio.wait({first, second}, timeout=0.01)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        back = asyncio.create_task(run_training(configs[1], Listening(others={RolledBack: came_back})))
        await begun.wait()
        await agent.Drain(FINISH, wait_for_ready=True)
        await still.Resume(pb.ResumeRequest())
        results = await asyncio.gather(first, back)
    assert [result.summary.steps for result in results] == [begun_at[0] + ahead + 1] * 2
    assert_same_bits(*(result.module.state_dict() for result in results))


async def test_a_group_that_leaves_out_late_members_is_not_finished_and_a_sentence_says_so(tmp_path):
    group, socket, begun = 'groups=[{name="line", size=1, leave_out_seconds=3.0}]', tmp_path / "a.sock", asyncio.Event()
    async with running_trainer(group, ACCEPTING, "checkpoints.location=none") as server, operated(socket) as agent:
        config = member(0, server, size=1, more=[*ENDLESS, SHARD, f"control.listen=unix:{socket}"])
        run = asyncio.create_task(run_training(config, Listening(lambda now: begun.set() if now.steps else None)))
        await begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent.Drain(FINISH)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "goes on without late members (leave_out_seconds)" in refused.value.details()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def slowly(asked=1, after=AFTER):
    """Return the flags of members that evaluate, of which one is asked to finish."""
    return {
        rank: [*evaluating(rank), *SLOWLY[rank], *([asking(after)] if rank == asked else [])] for rank in range(SIZE)
    }


def assert_ended(running, members):
    """Wait for the members, compare their models with those of one loop, and return the step after which they ended."""
    for process, said in members:
        assert process.wait(120) == 0, said
    found = [running.folder / f"member-{rank}" for rank in range(len(members))]
    (steps,) = {json.loads((each / "summary.json").read_text())["steps"] for each in found}
    running.configs = limited(running.configs, steps)
    running.assert_whole(members)
    for each in found:
        last = read_history(each)[-1]
        assert (last.step, last.test_loss is not None) == (steps, True)
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["member", "trainer"])
def test_who_is_killed_before_ends_with_the_others(killed, tmp_path):
    with Running(tmp_path, more=slowly(asked=0, after=20)) as running:
        assert 20 <= assert_ended(running, running.killed_and_back(killed, 6)) <= STEPS


POINTS = [
    "cloud_trainer.groups.trained_group:TrainedGroup.leave",
    "cloud_trainer.groups.merging:Merging.end",
    "cloud_trainer.groups.group_store:GroupStore.note_finished",
]


@pytest.mark.slow
@pytest.mark.parametrize("trainers", [("near",), ("near", "far")])
@pytest.mark.parametrize("point", POINTS)
def test_the_deciding_trainer_may_be_killed_before_it_hears_of_it_and_after(point, trainers, tmp_path):
    with Running(tmp_path, trainers, more=slowly()) as running:
        process = running.trainer_killed_at(point)
        for name in trainers[1:]:
            running.trainer(name)
        members = [running.member(rank) for rank in range(SIZE)]
        assert process.wait(60) == -signal.SIGKILL
        running.trainer()
        assert 0 < assert_ended(running, members) < STEPS


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_another_trainer_may_be_killed_before_it_hears_of_it_and_after(point, tmp_path):
    trainers = ("near", "far")
    with Running(tmp_path, trainers, more=slowly()) as running:
        running.trainer("near")
        process = running.trainer_killed_at(point, "far")
        members = [running.member(rank) for rank in range(SIZE)]
        assert process.wait(60) == -signal.SIGKILL
        running.trainer("far")
        assert 0 < assert_ended(running, members) < STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "nth", "is_told"),
    [
        ("edge_agent.sessions.trainer_worker:TrainerWorker.leave_group", 1, False),
        ("edge_agent.sessions.trainer_worker:TrainerWorker.leave_group", 2, True),
        ("edge_agent.sessions.open_session:OpenSession.collect", 2, True),
    ],
    ids=["before", "between", "after"],
)
def test_the_asked_member_may_be_killed_before_between_and_after_its_trainers_hear_of_it(point, nth, is_told, tmp_path):
    """Killed before it has told the deciding one, it has forgotten it: the group does all its steps."""
    trainers = ("near", "far")
    with Running(tmp_path, trainers, more=slowly()) as running:
        said = [running.trainer(name)[1] for name in trainers]
        other = running.member(0)
        process = running.member_killed_at(point, 1, nth)
        assert process.wait(60) == -signal.SIGKILL
        assert (assert_ended(running, [other, running.member(1)]) < STEPS) == is_told
        for each in said:
            each.first_event("a group has ended")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("edge_agent.sessions.trainer_worker:TrainerWorker.begin_in_group", 3),
        ("edge_agent.sessions.open_session:OpenSession.collect", 2),
    ],
)
def test_another_member_may_be_killed_as_it_hears_of_it(point, nth, tmp_path):
    with Running(tmp_path, ("near", "far"), more=slowly()) as running:
        for name in ("near", "far"):
            running.trainer(name)
        asked = running.member(1)
        process = running.member_killed_at(point, 0, nth)
        assert process.wait(60) == -signal.SIGKILL
        assert AFTER <= assert_ended(running, [running.member(0), asked]) < STEPS
