"""Results of a finished run, where there may be no room for them: whole or as they were, and never a traceback."""

import sys

import pytest

from shared.errors import ExitCode
from tests.support.commands import MLP, assert_one_sentence
from tests.support.running import agent_process, run_agent

pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING = [*MLP, "training.max_steps=3", "checkpoints.location=none"]
LIMITED = """
import os, resource, sys
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a cache that is cut off would fail whoever imports it next
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Limits the size of files, then becomes the command behind it. A `preexec_fn` would fork this process instead, and the
trainer's gRPC threads, which start anew in the fork, abort it when its files are closed."""


def ran_with(trainer, most_bytes, *flags):
    """An agent that has trained on a disk that takes no file of more than so many bytes."""
    flags = [f"--set={flag}" for flag in [*TRAINING, *flags]]
    return run_agent("run", f"--trainer={trainer}", *flags, under=[sys.executable, "-c", LIMITED, str(most_bytes)])


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [pytest.param(0, marks=pytest.mark.full), 1000])
@pytest.mark.usefixtures("serves_the_next")
def test_a_full_disk_is_named_with_its_exit_code_and_leaves_the_older_model_whole(trainer, tmp_path, most_bytes):
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"the older one")
    done = ran_with(trainer, most_bytes, f"output.directory={tmp_path}")
    assert_one_sentence(
        "edge-agent", done, ExitCode.STORAGE, f"{model if most_bytes else tmp_path / 'history.csv'} cannot be written: "
    )
    assert model.read_bytes() == b"the older one"
    assert {file.name for file in tmp_path.iterdir()} - {"history.csv"} == {"model.safetensors"}


@pytest.mark.slow
@pytest.mark.usefixtures("serves_the_next")
def test_a_disk_without_room_for_the_time_line_is_named_too(trainer, tmp_path):
    trace = tmp_path / "trace.json"
    done = ran_with(trainer, 0, f"output.trace={trace}")
    assert_one_sentence("edge-agent", done, ExitCode.STORAGE, f"{trace} cannot be written: ")


@pytest.mark.slow
@pytest.mark.usefixtures("serves_the_next")
def test_an_earlier_result_is_kept_aside_and_the_log_says_where(trainer, tmp_path):
    flags = [*TRAINING, f"output.directory={tmp_path / 'run'}", "log.format=json"]

    def ran(seed):
        done = run_agent(
            "run", f"--trainer={trainer}", *(f"--set={flag}" for flag in [*flags, f"training.seed={seed}"])
        )
        assert done.returncode == 0, done.stderr
        files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
        return files, done.stderr

    first, said = ran(1)
    assert (first.keys(), "kept aside" in said) == ({"model.safetensors", "summary.json", "history.csv"}, False)
    second, said = ran(2)
    assert second["model.safetensors"] != first["model.safetensors"]
    (aside,) = (tmp_path / "run" / "earlier").iterdir()
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == first
    assert str(aside) in said
    ran(3)
    assert len([*(tmp_path / "run" / "earlier").iterdir()]) == 2, "no earlier one is lost"


@pytest.mark.usefixtures("serves_the_next")
def test_a_folder_in_which_another_run_is_about_to_write_is_refused(trainer, tmp_path):
    endless = [*TRAINING, "training.max_steps=1000000", "training.epochs=100000", f"trainer.address={trainer}"]
    with agent_process(*endless, output=tmp_path / "run") as (agent, said):
        said.first_event("session opened")
        own = [*TRAINING, f"output.directory={tmp_path / 'run'}"]
        done = run_agent("run", f"--trainer={trainer}", *(f"--set={flag}" for flag in own))
        assert_one_sentence("edge-agent", done, ExitCode.CONFIG, "output.directory: another run writes its results to")
        agent.terminate()
        assert agent.wait(60) == ExitCode.TERMINATED
