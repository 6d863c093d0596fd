"""Failures beside the steps do not undo them: at the end, between checkpoints, and before the first."""

import asyncio
import threading

import pytest

from benchmarks.net.relay import Fault, Relay
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.checkpoint import CheckpointStore
from shared.errors import ExitCode, StoppedError
from tests.support.commands import MLP
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
async def test_a_link_that_drops_after_the_last_step_harms_no_finished_run():
    chosen = [*MLP, "training.max_steps=5"]
    loop, delivered = asyncio.get_running_loop(), []
    async with running_trainer() as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            async def drop():
                relay.inject(Fault.FREEZE)

            def on_result(result):
                delivered.append(result)
                asyncio.run_coroutine_threadsafe(drop(), loop).result()

            config = edge_config(*chosen, f"trainer.address={relay.address}")
            async with asyncio.timeout(100):
                result = await run_training(config, write_result=on_result)
    assert delivered == [result]
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
async def test_a_run_that_keeps_a_hundred_checkpoints_can_be_attached_again(tmp_path):
    chosen = [*MLP, "training.max_steps=90", "checkpoints.every_steps=1", "checkpoints.keep=100"]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def on_progress(progress):
                if progress.steps == 80:
                    relay.inject(Fault.DROP)

            places = [f"trainer.address={relay.address}", f"checkpoints.location={tmp_path / 'edge'}"]
            result = await run_training(edge_config(*chosen, *places), Listening(on_progress))
    assert result.summary.steps == 90


@pytest.fixture
def saves(monkeypatch):
    """Let a test act before each attempt to save a checkpoint, by side, and count the saved ones."""
    save, saved, before = CheckpointStore.save, {"edge-agent": 0, "cloud-trainer": 0}, {}

    def judged(store, *part):
        (side,) = (side for side in saved if f"/{side}/" in str(store.files))
        before.get(side, lambda: None)()
        links = save(store, *part)
        saved[side] += 1
        return links

    monkeypatch.setattr(CheckpointStore, "save", judged)
    return before, saved


async def train_until(enough, tmp_path, on_progress=lambda _progress: None):
    """Train within one epoch, in which checkpoints are due by time alone, until there are `enough`."""
    stop = Shutdown()

    def watch(progress):
        on_progress(progress)
        if enough() and not stop.requested:
            stop.drain()

    chosen = [*MLP, "data.batch_size=1", "training.max_steps=1400", "checkpoints.every_seconds=0.01"]
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        places = [f"trainer.address={server.address}", f"checkpoints.location={tmp_path / 'edge'}"]
        with pytest.raises(StoppedError):
            await run_training(edge_config(*chosen, *places), Listening(watch), shutdown=stop)


@pytest.mark.first_case
@pytest.mark.parametrize("side", ["edge-agent", "cloud-trainer"])
async def test_a_checkpoint_that_takes_longer_than_their_interval_is_not_the_last(tmp_path, saves, side):
    before, saved = saves
    go_on, at_step = threading.Event(), []
    before[side] = go_on.wait

    def on_progress(progress):
        if progress.steps == 150:  # the next one has been due since long
            at_step.append(saved[side])
            go_on.set()

    await train_until(lambda: saved[side] >= 3, tmp_path, on_progress)
    assert at_step == [0]


@pytest.mark.parametrize("side", ["edge-agent", "cloud-trainer"])
async def test_a_checkpoint_that_fails_in_any_way_is_not_the_last(tmp_path, saves, side):
    before, saved = saves
    failures = [MemoryError("no room for the bytes"), ValueError("these are no bytes")]

    def fail_at_first():
        if failures:
            raise failures.pop()

    before[side] = fail_at_first
    await train_until(lambda: saved[side] >= 3, tmp_path)
    assert not failures


async def test_a_run_that_begins_again_counts_its_steps_from_the_first(tmp_path):
    steps, lost = [], []
    async with running_trainer("checkpoints.location=none") as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def on_progress(progress):
                steps.append(progress.steps)
                if progress.steps == 20 and not lost:
                    lost.append(progress.session)
                    sessions = server.service.sessions
                    (known,) = sessions.built
                    sessions.remove(known)  # as a trainer that was restarted has it no more
                    relay.inject(Fault.DROP)

            chosen = [*MLP, "training.max_steps=40", f"checkpoints.location={tmp_path}"]
            result = await run_training(
                edge_config(*chosen, f"trainer.address={relay.address}"), Listening(on_progress)
            )
    assert lost
    assert max(steps) == result.summary.steps == 40
    assert steps.count(1) == 2


@pytest.mark.parametrize("call", ["OpenSession", "UploadBlock"])
async def test_a_run_that_is_told_to_stop_while_its_session_opens_ends_at_once(monkeypatch, call):
    name = {"OpenSession": "open_session", "UploadBlock": "upload_block"}[call]
    begun = asyncio.Event()

    async def never(*_, **__):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(f"shared.client.trainer.TrainerClient.{name}", never)
    if call == "UploadBlock":
        monkeypatch.setattr("cloud_trainer.sessions.blocks.SessionBlocks.digests", lambda _self: [0, 0, 0])
    stop = Shutdown()
    async with running_trainer() as server, asyncio.timeout(60):
        config = edge_config(*MLP, f"trainer.address={server.address}")
        running = asyncio.create_task(run_training(config, shutdown=stop))
        await begun.wait()
        stop.drain()
        with pytest.raises(StoppedError, match="before the first step") as ended:
            await running
        assert len(server.service.sessions) == 0, "a session that was open already is closed"
    assert ended.value.exit_code is ExitCode.TERMINATED
