"""Files that processes of ours leave on a disk are closed to other users, whatever umask they were started with."""

import os
import signal
from pathlib import Path

import pytest

from shared.checkpoint import LocalFiles
from shared.errors import ExitCode
from tests.support.commands import MLP
from tests.support.running import agent_process, run_agent, trainer_process


@pytest.fixture
def open_umask():
    """The widest umask that there is, for this process and those that it starts."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    return [f"{path}: {path.stat().st_mode:o}" for path in [folder, *folder.rglob("*")] if path.stat().st_mode & 0o077]


@pytest.mark.usefixtures("open_umask")
def test_checkpoints_records_locks_and_logs_of_both_sides_are_closed_to_others(tmp_path):
    places = {side: tmp_path / "made" / side for side in ("trainer", "agent")}

    def flags(side):
        place = places[side]
        return [
            f"checkpoints.location={place / 'state'}",
            f"checkpoints.step_log={place / 'steps'}",
            f"control.listen=unix:{place / 'control' / 'socket'}",
        ]

    with trainer_process(*flags("trainer"), f"server.address_file={tmp_path / 'address'}") as (_, address):
        run = [*MLP, "training.epochs=100000", "checkpoints.every_seconds=0.2", f"trainer.address={address}"]
        with agent_process(*run, *flags("agent"), output=places["agent"] / "out") as (agent, said):
            said.first_event("checkpoint at every worker", least_step=1)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(120) == ExitCode.TERMINATED
        assert open_to_others(tmp_path / "made") == []
        kept = {path.name.partition("-")[0] for path in (tmp_path / "made").rglob("*") if path.is_file()}
        assert {"session.json", "checkpoint", "lock"} <= kept, "there was something to look at"
    assert not (tmp_path / "address").stat().st_mode & 0o077


@pytest.mark.usefixtures("open_umask")
def test_results_are_closed_to_others(tmp_path):
    with trainer_process() as (_, address):
        flags = [
            *MLP,
            "training.max_steps=2",
            f"trainer.address={address}",
            f"output.trace={tmp_path / 'made' / 'trace'}",
        ]
        done = run_agent("run", *(f"--set={flag}" for flag in flags), f"--output={tmp_path / 'made' / 'out'}")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "made").rglob("*")} >= {"summary.json", "model.safetensors", "trace"}
    assert open_to_others(tmp_path / "made") == []


@pytest.mark.usefixtures("open_umask")
def test_what_an_older_version_left_open_is_closed_with_the_next_write(tmp_path):
    folder = tmp_path / "session"
    folder.mkdir()
    (folder / "session.json").write_text("old")
    (folder / "session.json.partial").write_text("a crash has left it")
    LocalFiles(folder).write("session.json", b"new")
    assert open_to_others(folder) == []
    assert LocalFiles(folder).read("session.json") == b"new"
