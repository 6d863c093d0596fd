"""A run that is asked to finish ends at a step boundary as a run of that many steps does, whoever asks and whenever."""

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import pytest

from edge_agent.control.service import SERVICE
from edge_agent.main import app as agent_app
from edge_agent.run import result_writer
from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder
from isthmus import Evaluated, run_training
from shared.errors import ExitCode, StorageError
from shared.transport.rpc.contract import Stub
from shared.wire.isthmus.v1 import control_pb2 as pb
from tests.support import plain_history, told
from tests.support.commands import command
from tests.support.group_flags import member_flags
from tests.support.placement_kinds import addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import (
    Listening,
    agent_process,
    edge_config,
    heard_trainer_process,
    held_port,
    running_trainer,
    trainer_process,
)

pytestmark = pytest.mark.usefixtures("one_thread", "_forgotten")
FINISH = pb.EdgeControlServiceDrainRequest(finish=True)
TEST = 'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}'
WITHOUT_TEST = [
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
    "data.batch_size=64",
    'training.optimizer={name="adamw", learning_rate=0.003}',
]
TRAINING = [*WITHOUT_TEST, TEST, "training.evaluate_every_steps=5"]
LENGTH = 220000
ENDLESS = "training.epochs=10000"
"""Far more steps than a test waits for."""


def steps(count):
    """The flag of a run of so many steps."""
    return f"training.max_steps={count}"


def asks_after(step):
    """The flag of a callback that asks the run to finish."""
    return f'training.callbacks=[{{name="tests.support.told:Keeper", kwargs={{asks="finish", after={step}}}}}]'


@pytest.fixture
def _forgotten():
    told.reset()


@asynccontextmanager
async def operated(socket):
    """The control service of the run at a socket."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel, asyncio.timeout(120):
        yield Stub(SERVICE, channel)


async def answering(service, run):
    """Wait until a run answers."""
    status = pb.EdgeControlServiceGetStatusRequest()
    asked = asyncio.ensure_future(service.GetStatus(status, wait_for_ready=True))
    await asyncio.wait({asked, run}, return_when=asyncio.FIRST_COMPLETED)
    assert not run.done(), run.exception()
    await asked


def failing(_result):
    raise StorageError("the disk is full")


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["two workers", "chain of three", "inverted"])
async def test_a_callback_has_it_end_with_all_that_a_run_of_that_many_steps_has(kind, tmp_path):
    out = tmp_path / "out"
    async with running_trainers() as servers:
        flags = [*TRAINING, *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, "mlp"), ENDLESS]
        flags += ["training.keep_best={}", "training.ema={decay=0.9}", f"checkpoints.location={tmp_path / 'edge'}"]
        config = edge_config(*flags, asks_after(7), f"output.directory={out}")
        found = await run_training(config, write_result=result_writer(config))
        count = found.summary.steps
        whole = await run_training(edge_config(*flags, steps(count)))
    assert 7 <= count < LENGTH
    assert (found.summary.finished_of_steps, whole.summary.finished_of_steps) == (LENGTH, None)
    written = json.loads((out / "summary.json").read_text())
    assert (written["steps"], written["finished_of_steps"]) == (count, LENGTH)
    assert found.history[-1].step == count
    assert found.history[-1].test_loss == found.summary.test_loss == whole.summary.test_loss
    assert plain_history.of(found.history) == plain_history.of(whole.history)
    assert found.summary.best_step == whole.summary.best_step
    assert_same_bits(whole.best, found.best)
    assert_same_bits(whole.average, found.average)
    assert_same_bits(whole.module.state_dict(), found.module.state_dict())
    assert_same_bits(plain_state(edge_config(*TRAINING, ENDLESS, steps(count))), found.module.state_dict())


@pytest.mark.parametrize("training", [TRAINING, WITHOUT_TEST], ids=["with a test set", "without"])
async def test_it_does_so_where_it_stands_still(training, tmp_path):
    begun, socket = asyncio.Event(), tmp_path / "a.sock"

    def see(now):
        if now.steps:
            begun.set()

    async with running_trainer() as server, operated(socket) as agent:
        flags = [*training, ENDLESS, "checkpoints.location=none", f"control.listen=unix:{socket}", "deployment.cut=1"]
        run = asyncio.create_task(
            run_training(edge_config(*flags, f"trainer.address={server.address}"), Listening(see))
        )
        await begun.wait()
        count = (await agent.Pause(pb.PauseRequest())).step
        said = await asyncio.to_thread(command, agent_app, "drain", "--finish", f"--control=unix:{socket}")
        result = await run
    assert "the run ends at the next step boundary, with its results\n" in said
    assert result.summary.steps == count
    expected = edge_config(*training, ENDLESS, steps(count))
    is_evaluated = {count, *range(5, count, 5), *range(22, count, 22)} if TEST in training else ()
    assert plain_history.of(result.history) == plain_history.plain_history(expected, lambda step: step in is_evaluated)
    assert_same_bits(plain_state(expected), result.module.state_dict())


@pytest.mark.parametrize("batches", [1, 4])
async def test_one_that_is_asked_before_its_first_step_does_that_and_no_other(batches, tmp_path):
    """Were it asked by an operator who has it stand still before the first step, nothing would ever come."""
    socket = tmp_path / "a.sock"
    flags = [*TRAINING, ENDLESS, f"training.accumulate_batches={batches}", "checkpoints.location=none"]
    there = ["trainer.connect_timeout_seconds=60", f"control.listen=unix:{socket}", "deployment.cut=1"]
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        async with operated(socket) as agent:
            run = asyncio.create_task(run_training(edge_config(*flags, *there, f"trainer.address={address}")))
            await answering(agent, run)
            pausing = agent.Pause(pb.PauseRequest())
            await agent.Drain(FINISH)
            async with running_trainer(f"server.listen={address}"):
                result = await run
            with pytest.raises(grpc.aio.AioRpcError):
                await pausing
    assert result.summary.steps == batches
    assert [row.step for row in result.history] == [batches]
    assert_same_bits(plain_state(edge_config(*flags, steps(batches))), result.module.state_dict())


@pytest.mark.slow
async def test_one_that_goes_back_before_its_weights_are_here_finishes_where_it_goes_on(tmp_path):
    with held_port() as port:
        there = [f"server.listen=127.0.0.1:{port}", f"checkpoints.location={tmp_path / 'trainer'}", "compute.threads=1"]
        here = [f"trainer.address=127.0.0.1:{port}", "trainer.give_up_seconds=60", "deployment.cut=1"]
        kept = [f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=3"]
        training = [*WITHOUT_TEST, TEST, "training.evaluate_every_epochs=0", ENDLESS]
        config = edge_config(*training, *here, *kept, asks_after(10))
        ends = []
        with heard_trainer_process(*there) as (process, _, _):

            def kill(event):
                ends.append(event.step)
                if len(ends) == 1:
                    process.kill()

            run = asyncio.create_task(run_training(config, Listening(others={Evaluated: kill})))
            await asyncio.to_thread(process.wait)
            with trainer_process(*there):
                result = await run
    assert len(ends) == 2
    assert ends[1] == result.summary.steps == result.history[-1].step
    assert result.summary.finished_of_steps == LENGTH
    assert_same_bits(plain_state(edge_config(*training, steps(ends[1]))), result.module.state_dict())


async def test_its_results_are_written_by_the_next_process_where_they_were_not(tmp_path):
    seen = []
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}"]
        with pytest.raises(StorageError, match="the trained model is kept"):
            await run_training(edge_config(*flags, ENDLESS, asks_after(7)), write_result=failing)
    config = edge_config(*flags, ENDLESS)
    done = await run_training(config, Listening(lambda now: seen.append(now.steps)), resume=Resume())
    assert seen == [done.summary.steps], "no step was done again"
    assert done.summary.finished_of_steps == LENGTH
    expected = edge_config(*TRAINING, ENDLESS, steps(done.summary.steps))
    assert_same_bits(plain_state(expected), done.module.state_dict())
    assert sessions_folder(config).folders() == []


async def test_one_whose_results_were_not_written_goes_on_where_it_is_told_to_have_other_steps(tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", f"trainer.address={server.address}", ENDLESS]
        flags.append("checkpoints.every_steps=5")
        with pytest.raises(StorageError, match="the trained model is kept"):
            await run_training(edge_config(*flags, asks_after(7)), write_result=failing)
        reached = [event.step for event in told.kinds(Evaluated)][-1]
        done = await run_training(edge_config(*flags, steps(reached + 7)), resume=Resume())
    assert (done.summary.steps, done.summary.finished_of_steps) == (reached + 7, None)
    expected = edge_config(*TRAINING, ENDLESS, steps(reached + 7))
    assert_same_bits(plain_state(expected), done.module.state_dict())


@pytest.mark.first_case
@pytest.mark.parametrize("training", [TRAINING, WITHOUT_TEST], ids=["with a test set", "without"])
async def test_one_that_is_kept_goes_on_and_two_runs_are_one(training, tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*training, "checkpoints.keep_finished=true", f"checkpoints.location={tmp_path / 'edge'}"]
        flags += [f"trainer.address={server.address}", "deployment.cut=1"]
        first = await run_training(edge_config(*flags, ENDLESS, asks_after(7)))
        length = steps(first.summary.steps + 30)
        result = await run_training(edge_config(*flags, ENDLESS, length), resume=Resume())
    assert result.summary.session == first.summary.session
    assert result.summary.finished_of_steps is None
    expected, last = edge_config(*training, ENDLESS, length), first.summary.steps + 30
    is_evaluated = {last, *range(5, last, 5), *range(22, last, 22)} if TEST in training else ()
    found, rows = (
        plain_history.of(result.history),
        plain_history.plain_history(expected, lambda step: step in is_evaluated),
    )
    assert found == rows
    assert_same_bits(plain_state(expected), result.module.state_dict())


async def test_a_member_that_is_not_in_its_group_yet_or_is_to_leave_it_too_is_refused_in_a_sentence(tmp_path):
    socket = tmp_path / "a.sock"
    waits = ["trainer.address=127.0.0.1:1", "trainer.connect_timeout_seconds=60", f"control.listen=unix:{socket}"]
    async with operated(socket) as agent:
        run = asyncio.create_task(run_training(edge_config(*member_flags(0, size=2, more=waits))))
        await answering(agent, run)
        for leave in (False, True):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await agent.Drain(pb.EdgeControlServiceDrainRequest(finish=True, leave=leave))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "no session is open now" in refused.value.details()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_to_leave_no_group_and_to_finish_is_refused_and_the_process_ends_well_by_one_of_them(tmp_path):
    socket = tmp_path / "a.sock"
    with (
        trainer_process("compute.threads=1") as (_, address),
        agent_process(
            *TRAINING,
            ENDLESS,
            "compute.threads=1",
            "checkpoints.location=none",
            f"control.listen=unix:{socket}",
            f"trainer.address={address}",
            output=tmp_path / "out",
        ) as (agent, said),
    ):
        said.first_event("controlled at")
        async with operated(socket) as service:
            with pytest.raises(grpc.aio.AioRpcError, match="this device is in no group"):
                await service.Drain(pb.EdgeControlServiceDrainRequest(finish=True, leave=True))
            await service.Drain(FINISH)
        assert agent.wait(60) == ExitCode.OK
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written["finished_of_steps"] == LENGTH
    assert (tmp_path / "out" / "model.safetensors").exists()
