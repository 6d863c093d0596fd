"""A wheel alone, in an environment without a clone: the demo, the samples, and a program of a user's own."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from shared.errors import ExitCode
from tests.support.commands import assert_one_sentence
from tests.support.wheel import built_wheel

PROGRAM = """
from isthmus import EdgeConfig, load_config, train

settings = ["trainers=[]", "training.max_steps=2", "checkpoints.location=none", "control.listen=none"]
if __name__ == "__main__":
    print(train(load_config(EdgeConfig, None, settings)).summary.steps)
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Return the folder of the commands of an environment that has the wheel, and what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = built_wheel(folder)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    (packages,) = environment.glob("lib/python3.*/site-packages")
    for one in Path(sysconfig.get_path("purelib")).iterdir():  # all but what is installed of this tree
        if not one.name.startswith(("isthmus", "__editable__")) and not (packages / one.name).exists():
            (packages / one.name).symlink_to(one)
    return environment / "bin"


def ran(scripts, *command, folder):
    return subprocess.run(
        [scripts / command[0], *command[1:]], cwd=folder, capture_output=True, text=True, env={"HOME": str(folder)}
    )


@pytest.mark.slow
def test_the_demo_and_its_samples_come_with_a_wheel(scripts, tmp_path):
    flags = ("--set", "training.max_steps=4", "--set", "control.listen=none")
    done = ran(scripts, "edge-agent", "demo", *flags, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "demo" / "summary.json").read_text())["steps"] == 4
    done = ran(scripts, "edge-agent", "demo", "--files", "samples", folder=tmp_path)
    assert "samples/profile.json" in done.stdout.split()
    link = ("--trace", "samples/drop.csv", "--downlink", "50mbit")
    assert (
        ran(scripts, "edge-agent", "simulate", "--profile", "samples/profile.json", *link, folder=tmp_path).returncode
        == 0
    )
    again = ran(scripts, "edge-agent", "demo", "--files", "samples", folder=tmp_path)
    assert_one_sentence("edge-agent", again, ExitCode.CONFIG, "samples is there already")


@pytest.mark.slow
def test_a_program_beside_a_clone_and_a_package_named_shared_trains(scripts, tmp_path):
    (tmp_path / "isthmus" / "shared").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("")
    (tmp_path / "mine.py").write_text(PROGRAM)
    done = ran(scripts, "python", "mine.py", folder=tmp_path)
    assert done.stdout.splitlines()[-1] == "2", done.stderr
