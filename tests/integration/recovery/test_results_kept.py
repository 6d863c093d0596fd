"""Results of training are not lost at the end: a result that cannot be written is kept, and a command writes it."""

import asyncio
import json
import re
import shlex

import pytest
from safetensors.torch import load_file
from structlog.testing import capture_logs

from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import sessions_folder
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import DataError, ExitCode, StorageError, UnreachableError
from tests.support.commands import MLP, assert_one_sentence, spoken
from tests.support.hosts.small_disk import small_disk
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import (
    GIVE_UP_AT_ONCE,
    Listening,
    agent_process,
    edge_config,
    run_agent,
    running_trainer,
    trainer_process,
)
from tests.support.samples import FlatDigits

pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING = [*MLP, "training.epochs=1", "training.max_steps=20", "training.evaluate_every_epochs=0"]


def command_in(sentence):
    """Return the command that a user would paste, without the program's name."""
    program, *arguments = shlex.split(re.search(r"`(edge-agent run [^`]*)`", sentence)[1])
    assert program == "edge-agent"
    return arguments


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_end_loses_nothing_and_the_command_that_is_said_writes_the_result(tmp_path):
    flags = [*TRAINING, f"checkpoints.location={tmp_path / 'state'}"]
    with small_disk(tmp_path / "small", 4 << 20) as disk:
        with trainer_process("compute.threads=1", "checkpoints.location=none") as (_, address):
            run = [*flags, f"trainer.address={address}", f"output.directory={disk.place}"]
            with agent_process(*run, "training.max_steps=2000", "training.epochs=1000", under=disk.under) as (
                agent,
                said,
            ):
                said.first_event("session opened")
                disk.fill()
                assert agent.wait(120) == ExitCode.STORAGE
                said.join()
        sentence = spoken(list(said.last_lines)[-1])
        assert re.search(r"(model\.safetensors|history\.csv) cannot be written: .*No space left on device", sentence)
        assert [path.name for path in disk.seen.iterdir()] == ["filler"], "nothing is left half-done"
    done = run_agent(*command_in(sentence))  # the folder behind the disk has room, and the trainer is gone
    assert done.returncode == 0, done.stderr
    assert "2000 steps" in done.stdout
    expected = plain_state(edge_config(*TRAINING, "training.max_steps=2000", "training.epochs=1000"))
    assert_same_bits(expected, load_file(tmp_path / "small" / "model.safetensors"))
    assert json.loads((tmp_path / "small" / "summary.json").read_text())["steps"] == 2000
    assert sessions_folder(edge_config(*flags)).folders() == []


@pytest.mark.slow
def test_a_disk_without_room_for_the_results_is_refused_before_the_first_step(tmp_path):
    with small_disk(tmp_path / "small", 64 << 10) as disk:
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'state'}", f"output.directory={disk.place}"]
        done = run_agent("run", *(f"--set={flag}" for flag in flags), under=disk.under)
        assert_one_sentence(
            "edge-agent", done, ExitCode.STORAGE, "output.directory: the disk of", "65.5 kB left", "make room"
        )
        assert "session opened" not in done.stderr


def failing(_result):
    raise StorageError("/results/model.safetensors cannot be written: No space left on device")


async def test_a_run_that_had_finished_training_only_writes_its_results_without_a_trainer_and_once(tmp_path):
    settings = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}"]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*settings, f"trainer.address={server.address}"]
        with pytest.raises(
            StorageError, match=r"the trained model is kept, and `mine --session=\w{32}` writes its results"
        ):
            await run_training(edge_config(*flags), write_result=failing, shutdown=Shutdown("mine"))
    steps, written = [], []
    with pytest.raises(StorageError, match="the trained model is kept"):
        await run_training(edge_config(*flags), write_result=failing, resume=Resume())
    listening = Listening(lambda now: steps.append(now.steps))
    done = await run_training(edge_config(*flags), listening, written.append, resume=Resume())
    assert steps == [20], "no step was done again"
    assert_same_bits(plain_state(edge_config(*TRAINING)), done.module.state_dict())
    assert [result.summary.steps for result in written] == [20]
    assert written[0].summary.train_loss > 0
    assert sessions_folder(edge_config(*flags)).folders() == []


async def test_the_trainer_is_told_when_the_results_are_written_at_last(tmp_path):
    settings = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=5"]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*settings, f"trainer.address={server.address}"]
        with pytest.raises(StorageError):
            await run_training(edge_config(*flags), write_result=failing)
        assert [*(tmp_path / "trainer" / "cloud-trainer").iterdir()], (
            "the session is kept until its results are written"
        )
        await run_training(edge_config(*flags), resume=Resume())
        assert not [*(tmp_path / "trainer" / "cloud-trainer").iterdir()]


async def test_a_run_that_had_finished_may_still_become_longer(tmp_path):
    settings = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=5"]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*settings, f"trainer.address={server.address}"]
        with pytest.raises(StorageError):
            await run_training(edge_config(*flags), write_result=failing)
        longer = ["training.max_steps=30"]
        done = await run_training(edge_config(*flags, *longer), resume=Resume())
    assert_same_bits(plain_state(edge_config(*TRAINING, *longer)), done.module.state_dict())


async def test_a_kept_model_that_is_damaged_is_trained_again_from_the_newest_checkpoint(tmp_path):
    settings = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.every_steps=5"]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = [*settings, f"trainer.address={server.address}"]
        with pytest.raises(StorageError):
            await run_training(edge_config(*flags), write_result=failing)
        (model,) = (tmp_path / "edge").rglob("result/*.safetensors")
        model.write_bytes(model.read_bytes()[:-1])
        steps = []
        done = await run_training(edge_config(*flags), Listening(lambda now: steps.append(now.steps)), resume=Resume())
    assert max(steps) == 20
    assert_same_bits(plain_state(edge_config(*TRAINING)), done.module.state_dict())


async def test_a_stop_that_comes_while_the_results_are_written_waits_until_they_are(tmp_path):
    shutdown, written = Shutdown(), []

    def stop_and_write(result):
        loop.call_soon_threadsafe(shutdown.drain)
        result.write(tmp_path / "out")
        written.append(result)

    async with running_trainer() as server:
        loop = asyncio.get_running_loop()
        flags = [*TRAINING, f"checkpoints.location={tmp_path / 'edge'}", "checkpoints.stop_seconds=0.001"]
        config = edge_config(*flags, f"trainer.address={server.address}")
        result = await run_training(config, write_result=stop_and_write, shutdown=shutdown)
    assert (result.summary.steps, len(written)) == (20, 1)
    assert shutdown.requested
    assert sessions_folder(config).folders() == []


async def failure_of(tmp_path, kind, trainer, on_progress, *more):
    flags = [
        *TRAINING,
        f"checkpoints.location={tmp_path / 'edge'}",
        "checkpoints.every_steps=5",
        GIVE_UP_AT_ONCE,
        *more,
    ]
    config = edge_config(*flags, f"trainer.address={trainer.address}")
    with pytest.raises(kind) as caught:
        await run_training(config, Listening(on_progress), shutdown=Shutdown("mine --resume"))
    return str(caught.value)


async def test_every_failure_that_can_be_resumed_names_the_command_that_goes_on(tmp_path, monkeypatch):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        reads = FlatDigits.__getitem__
        count = []

        def breaking(digits, index):
            count.append(index)
            if len(count) > 12 * 32:
                raise OSError("the card was pulled out")
            return reads(digits, index)

        monkeypatch.setattr(FlatDigits, "__getitem__", breaking)
        said = await failure_of(tmp_path / "data", DataError, server, lambda _: None)
        assert re.search(r"the card was pulled out; `mine --resume --session=\w{32}` goes on$", said), said
        monkeypatch.setattr(FlatDigits, "__getitem__", reads)

        stopping = []

        def lose_the_trainer(progress):
            if progress.steps == 12:
                stopping.append(asyncio.ensure_future(server.stop()))

        said = await failure_of(tmp_path / "lost", UnreachableError, server, lose_the_trainer)
        assert re.search(r"; `mine --resume --session=\w{32}` goes on$", said), said
        await stopping[0]


async def test_a_failure_of_which_nothing_is_kept_promises_nothing():
    async with running_trainer("checkpoints.location=none") as server:
        flags = [*TRAINING, "checkpoints.location=none", f"trainer.address={server.address}"]
        with pytest.raises(StorageError) as caught:
            await run_training(edge_config(*flags), write_result=failing)
        assert re.search(r"No space left on device \(run [0-9a-f]{32}\)$", str(caught.value))


async def test_room_that_is_short_for_checkpoints_is_warned_of_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_agent.sessions.room.free_bytes_at", lambda _path: 500_000)
    async with running_trainer() as server:
        flags = [*TRAINING, "training.max_steps=2", f"checkpoints.location={tmp_path}", "checkpoints.keep=50"]
        with capture_logs() as logs:
            await run_training(edge_config(*flags, f"trainer.address={server.address}"))
    (warned,) = (entry for entry in logs if "may become full" in entry["event"])
    assert (warned["free"], warned["log_level"]) == ("500.0 kB", "warning")
    opened = [entry["event"] for entry in logs].index("session opened")
    assert logs.index(warned) < opened
