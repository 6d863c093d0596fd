"""What a finished run leaves, where there may be no room for it: whole or as it was, and never a traceback."""

import sys

import pytest

from shared.errors import ExitCode
from tests.support.commands import MLP, assert_one_sentence
from tests.support.running import run_agent

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

TRAINING = [*MLP, "training.max_steps=3", "checkpoints.location=none"]
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Limits the size of files, then becomes the command behind it. A `preexec_fn` would fork this process instead, and the
trainer's gRPC threads, which start anew in the fork, abort it when its files are closed."""


def ran_with(trainer, most_bytes, *flags):
    """An agent that has trained on a disk that takes no file of more than so many bytes."""
    flags = [f"--set={flag}" for flag in [*TRAINING, *flags]]
    return run_agent("run", f"--trainer={trainer}", *flags, under=[sys.executable, "-c", LIMITED, str(most_bytes)])


@pytest.mark.parametrize("most_bytes", [0, 1000])
@pytest.mark.usefixtures("serves_the_next")
def test_a_full_disk_is_named_with_its_exit_code_and_leaves_the_older_model_whole(trainer, tmp_path, most_bytes):
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"the older one")
    done = ran_with(trainer, most_bytes, f"output.directory={tmp_path}")
    assert_one_sentence("edge-agent", done, ExitCode.STORAGE, f"{model} cannot be written: ")
    assert model.read_bytes() == b"the older one"
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.usefixtures("serves_the_next")
def test_a_disk_without_room_for_the_time_line_is_named_too(trainer, tmp_path):
    trace = tmp_path / "trace.json"
    done = ran_with(trainer, 0, f"output.trace={trace}")
    assert_one_sentence("edge-agent", done, ExitCode.STORAGE, f"{trace} cannot be written: ")
