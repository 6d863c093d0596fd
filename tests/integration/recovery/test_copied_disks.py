"""A device whose disk was copied while it trained: of the two, one goes on, and the other is told of it and ends, until the
first is gone."""

import shutil
import subprocess
from contextlib import contextmanager

import pytest

from shared.errors import ExitCode
from tests.support.experiments import flags
from tests.support.forked import Forked, program
from tests.support.other_hosts import reached_from
from tests.support.running import StandardError, trainer_process

ENDLESS = [
    *flags("cnn", "adamw"),
    "training.max_steps=1000000",
    "training.epochs=100000",
    "training.evaluate_every_epochs=0",
    "checkpoints.every_steps=20",
    "compute.threads=1",
    "compute.device=cpu",
    "control.listen=none",
    "log.format=json",
]


@contextmanager
def device(folder, address, *arguments):
    """An agent with its state in a folder, and what it says."""
    settings = [*ENDLESS, f"checkpoints.location={folder}", f"trainer.address={address}"]
    process = Forked(
        program, "edge_agent.main", "run", *arguments, *(f"--set={one}" for one in settings), stderr=subprocess.PIPE
    )
    said = StandardError(process)
    try:
        yield process, said
    finally:
        process.kill()
        process.wait()
        said.join()


def names_both(said):
    return "127.0.0.2" in str(said) and "127.0.0.3" in str(said) and "a copy of the other's disk" in str(said)


@pytest.mark.slow
def test_of_two_devices_with_one_copied_disk_one_goes_on_and_the_other_is_told_both_addresses(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    with (
        trainer_process("compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}") as (_, address),
        reached_from("127.0.0.2", address) as from_first,
        reached_from("127.0.0.3", address) as from_copy,
        device(first, from_first) as (one, said_by_one),
    ):
        said_by_one.first_event("checkpoint at every worker", least_step=20)
        shutil.copytree(first, copy)
        with device(copy, from_copy, "--resume") as (_, said_by_other):
            assert one.wait(60) == ExitCode.REFUSED
            said_by_one.join()
            assert names_both(said_by_one), said_by_one
            step = said_by_other.first_event("checkpoint at every worker")["step"]
            with device(first, from_first, "--resume") as (again, said_again):
                assert again.wait(60) == ExitCode.REFUSED
                said_again.join()
            assert names_both(said_again), said_again
            # The one that was refused with the other's term ends nothing of it.
            said_by_other.first_event("checkpoint at every worker", least_step=step + 100)


@pytest.mark.slow
def test_once_the_copy_is_gone_the_first_device_has_its_session_back_however_often_the_copy_had_joined(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    keeping = ["compute.threads=1", f"checkpoints.location={tmp_path / 'trainer'}", "checkpoints.keep=1000"]
    with (
        trainer_process(*keeping) as (_, address),
        reached_from("127.0.0.2", address) as from_first,
        reached_from("127.0.0.3", address) as from_copy,
    ):
        with device(first, from_first) as (_, said):
            step = said.first_event("checkpoint at every worker", least_step=20)["step"]
            shutil.copytree(first, copy)
        for _ in range(3):
            with device(copy, from_copy, "--resume") as (_, said):
                step = said.first_event("checkpoint at every worker", least_step=step + 1)["step"]
        with device(first, from_first, "--resume") as (_, said):
            told = said.first_event("this agent takes the session back from another one, which is gone")
            assert names_both(told["reason"]), told
            said.first_event("checkpoint at every worker")
