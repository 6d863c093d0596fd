"""Ends of runs that could not be completed: with the reason that counts, and nothing half-done left behind."""

import asyncio

import pytest

from edge_agent.sessions.resuming import Resume
from edge_agent.sessions.stored_session import StoredSession, sessions_folder, stored_sessions
from edge_agent.training.divergence import LossCheck
from edge_agent.training.events import CheckpointShared
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.client.trainer import TrainerClient
from shared.errors import DivergedError, StoppedError, StorageError
from tests.support.commands import MLP
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(folder, *more):
    return [*MLP, "training.max_steps=20", f"checkpoints.location={folder / 'edge'}", *more]


async def test_a_diverged_run_whose_result_cannot_be_written_ends_as_diverged(tmp_path, monkeypatch):
    """It diverges as soon as both sides have a checkpoint, however long that takes."""
    shared = []

    def diverge(_self, step, _loss):
        if len(shared) > 1:  # the first is the beginning
            raise DivergedError("training has diverged", step)

    def full(_result):
        raise StorageError("no space left on device")

    monkeypatch.setattr(LossCheck, "check", diverge)
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = settings(tmp_path, "training.epochs=10000", "training.max_steps=100000", "checkpoints.every_steps=2")
        config = edge_config(*flags, f"trainer.address={server.address}")
        with pytest.raises(
            DivergedError, match=r"diverged; the last good weights, those before step \d+, could not be"
        ):
            await run_training(config, Listening(others={CheckpointShared: shared.append}), full)


async def test_a_step_log_that_cannot_be_opened_leaves_no_session_behind(tmp_path):
    (tmp_path / "file").touch()
    flags = settings(tmp_path, f"checkpoints.step_log={tmp_path / 'file'}")
    async with running_trainer() as server:
        with pytest.raises(StorageError, match="cannot be opened"):
            await run_training(edge_config(*flags, f"trainer.address={server.address}"))
        assert len(server.service.sessions) == 0
    assert sessions_folder(edge_config(*flags)).folders() == []


@pytest.fixture
async def stopped(tmp_path):
    """The settings of a run that was stopped at step 10 or soon after, with a checkpoint on both sides."""
    shutdown = Shutdown()

    def stop_there(statistics):
        if statistics.steps == 10:
            shutdown.drain()

    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        flags = settings(tmp_path, f"trainer.address={server.address}")
        with pytest.raises(StoppedError):
            await run_training(edge_config(*flags), Listening(stop_there), shutdown=shutdown)
        yield flags


async def waiting_for_ever(shutdown):
    shutdown.drain()
    await asyncio.Event().wait()


async def test_a_resumed_run_that_is_stopped_while_it_connects_says_what_is_kept(stopped, monkeypatch):
    shutdown = Shutdown()
    monkeypatch.setattr(TrainerClient, "__aenter__", lambda _client: waiting_for_ever(shutdown))
    with pytest.raises(
        StoppedError, match=r"session \w{32} is as it was, and `edge-agent run --resume --session=\w{32}` goes on"
    ):
        await run_training(edge_config(*stopped), resume=Resume(), shutdown=shutdown)
    assert [is_open for _, _, is_open in stored_sessions(sessions_folder(edge_config(*stopped)))] == [False]


async def test_a_resumed_run_that_is_stopped_while_it_joins_says_how_far_it_is(stopped, monkeypatch):
    shutdown = Shutdown()
    monkeypatch.setattr(TrainerClient, "join_session", lambda *_: waiting_for_ever(shutdown))
    config = edge_config(*stopped, "checkpoints.stop_seconds=0.01")
    with pytest.raises(StoppedError, match=r"at step 1\d of 20; `edge-agent run --resume --session=\w{32}` goes on"):
        await run_training(config, resume=Resume(), shutdown=shutdown)


async def test_a_session_without_a_checkpoint_that_is_of_use_names_what_forgets_it(stopped):
    folder = sessions_folder(edge_config(*stopped))
    (session,) = folder.folders()
    stored = StoredSession.reopen(folder, session, 1)
    for name in stored.checkpoints():
        stored.remove_damaged(name)
    stored.release()
    with pytest.raises(StorageError, match=f"no checkpoint of it is left here.*`edge-agent forget {session} --set="):
        await run_training(edge_config(*stopped), resume=Resume())
    assert folder.folders() == [session], "what is kept is for its owner to remove"
