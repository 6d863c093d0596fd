"""A session that the trainer no longer has ends its agent with one sentence, and the device can be told to forget it."""

import asyncio
import fcntl
import shutil

import pytest

from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.checkpoint import unseal
from shared.errors import ExitCode, GoneError, StoppedError
from tests.support.commands import MLP, assert_one_sentence
from tests.support.running import Listening, edge_config, run_agent, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


class Device:
    """An agent's settings and what it keeps."""

    def __init__(self, folder):
        self.folder = folder
        self.settings = [*MLP, "training.max_steps=40", "checkpoints.every_steps=5", f"checkpoints.location={folder}"]

    @property
    def sessions(self):
        """The ids of those that are kept."""
        return [path.name for path in (self.folder / "edge-agent").iterdir()]

    @property
    def shared(self):
        """Tell whether a checkpoint of its session is on both sides."""
        (session,) = self.sessions
        return unseal((self.folder / "edge-agent" / session / "session.json").read_bytes())["shared"] is not None

    async def train_some_steps(self, address):
        """Train until it is stopped in the middle, with a checkpoint on both sides; returns the session's id."""
        stop = Shutdown()

        def on_progress(progress):
            if progress.steps == 20:
                stop.drain()

        with pytest.raises(StoppedError, match=r"--session=[0-9a-f]{32}` goes on"):
            await run_training(
                edge_config(*self.settings, f"trainer.address={address}"), Listening(on_progress), shutdown=stop
            )
        (session,) = self.sessions
        return session

    async def command(self, *arguments, address=None):
        """A command of the agent, on this device."""
        where = [] if address is None else [f"--trainer={address}"]
        return await asyncio.to_thread(run_agent, *arguments, *where, *(f"--set={flag}" for flag in self.settings))


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path / "device")


@pytest.mark.slow
async def test_losing_the_trainers_volume_ends_an_agent_once_and_it_can_begin_from_the_start(device, tmp_path):
    location = f"checkpoints.location={tmp_path / 'trainer'}"
    async with running_trainer(location) as server:
        session = await device.train_some_steps(server.address)
    shutil.rmtree(tmp_path / "trainer")
    async with running_trainer(location) as server:
        done = await device.command("run", "--resume", address=server.address)
        assert_one_sentence("edge-agent", done, ExitCode.GONE, session, f"`edge-agent forget {session}`")
        assert device.sessions == [session], "the trainer's disk may come back"
        assert (await device.command("forget", session)).returncode == ExitCode.OK
        assert device.sessions == []
        done = await device.command("run", "--resume", address=server.address)
        assert done.returncode == ExitCode.OK, done.stderr
        assert "40 steps" in done.stdout


async def test_a_session_that_an_operator_closed_for_good_names_what_forgets_it(device, tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        closing = []

        def on_progress(_progress):
            if not closing and device.shared:
                (session,) = server.service.sessions.built
                closing.append(asyncio.create_task(server.service.end_session(session.id, resumable=False)))

        config = edge_config(*device.settings, f"trainer.address={server.address}", "training.max_steps=10000")
        # The stream is refused first, or the call for a checkpoint that is just due.
        closed = "(was closed while it trained|there is no session .*; it was closed)"
        with pytest.raises(GoneError, match=closed + ".*`edge-agent forget [0-9a-f]{32}`"):
            await run_training(config, Listening(on_progress))
        await asyncio.gather(*closing)


async def test_only_what_is_kept_and_not_in_use_can_be_forgotten(device, tmp_path):
    async with running_trainer(f"checkpoints.location={tmp_path / 'trainer'}") as server:
        session = await device.train_some_steps(server.address)
    for wrong in ("0" * 32, "..", f"{session}/..", ""):
        done = await device.command("forget", wrong)
        assert_one_sentence("edge-agent", done, ExitCode.CONFIG, "nothing is kept of a session")
    with (device.folder / "edge-agent" / session / "lock").open("ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        done = await device.command("forget", session)
        assert_one_sentence("edge-agent", done, ExitCode.CONFIG, "is open in another process")
    assert device.sessions == [session]
