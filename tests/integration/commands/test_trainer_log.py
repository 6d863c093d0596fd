"""The trainer's log tells its operator of ends as it tells of beginnings, and warns of nothing where nothing is
wrong."""

import pytest

from tests.support.commands import MLP
from tests.support.running import agent_process, heard_trainer_process, run_agent

pytestmark = pytest.mark.usefixtures("one_thread")


def entries(said, name):
    return [entry for entry in said.heard if entry["event"] == name]


def test_the_log_tells_how_each_session_ended(tmp_path, trainer_with_log):
    address, said = trainer_with_log
    flags = [*MLP, f"trainer.address={address}", f"checkpoints.location={tmp_path}", "checkpoints.every_steps=5"]
    done = run_agent("run", *(f"--set={flag}" for flag in [*flags, "training.max_steps=7"]))
    assert done.returncode == 0, done.stderr
    finished = said.first_event("session closed")
    with agent_process(*flags, "training.epochs=100000") as (process, agent_said):
        agent_said.first_event("checkpoint at every worker")
        process.terminate()
        process.wait(timeout=60)
    stopped = said.first_event("session closed")
    assert (finished["step"], finished["resumable"], stopped["resumable"]) == (7, False, True)
    assert finished["session"] != stopped["session"]
    assert stopped["step"] >= 5
    opened, attached, detached = (
        entries(said, name) for name in ("session opened", "worker attached", "worker detached")
    )
    ids = [finished["session"], stopped["session"]]
    assert [entry["session"] for entry in opened] == ids
    assert [entry["session"] for entry in attached] == ids
    assert [entry["session"] for entry in detached] == ids
    assert all(entry["reason"] == "the worker has ended the stream" for entry in detached)


def test_an_edge_that_is_lost_is_told_as_that(trainer_with_log):
    address, said = trainer_with_log
    with agent_process(*MLP, f"trainer.address={address}", "training.epochs=100000") as (process, _):
        said.first_event("worker attached")
        process.kill()
        process.wait()
        assert said.first_event("worker detached")["reason"] != "the worker has ended the stream"


def test_a_doctor_leaves_no_warning(trainer_with_log):
    address, said = trainer_with_log
    done = run_agent("doctor", "--json", f"--set=trainer.address={address}")
    assert '"check": "protocol"' in done.stdout, done
    looked = said.first_event("looked at by a doctor")
    assert looked["level"] == "info"
    flags = [*MLP, f"trainer.address={address}", "training.max_steps=1", "checkpoints.location=none"]
    assert run_agent("run", *(f"--set={flag}" for flag in flags)).returncode == 0
    said.first_event("session closed")  # what the doctor's calls left would have come before
    assert [entry for entry in said.heard if entry["level"] != "info"] == []


@pytest.fixture
def trainer_with_log(tmp_path):
    """The address of a trainer, and what it says."""
    flags = ["compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}"]
    with heard_trainer_process(*flags) as (_, address, said):
        yield address, said
