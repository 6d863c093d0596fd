"""The systemd units and the script that installs them, checked with the tools for such files."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from shared.errors import ExitCode
from tests.conftest import ROOT
from tests.support.hosts.sources import copied_by_install, copied_into_images
from tests.support.running import SCRIPTS

HERE = ROOT / "deploy" / "systemd"
UNITS = ["edge-agent", "cloud-trainer"]
MOST_EXPOSED = 20
"""Largest exposure, in tenths, as `systemd-analyze security` takes it."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
each_unit = pytest.mark.parametrize("name", UNITS)


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def setting(name, key):
    return re.findall(rf"^{key}=(.*)$", (HERE / f"{name}.service").read_text(), re.MULTILINE)


@needs_systemd
@each_unit
def test_the_unit_is_valid(name, tmp_path):
    # The command is not installed here, and that is no fault of the unit.
    command = tmp_path / name
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / f"{name}.service"
    unit.write_text((HERE / f"{name}.service").read_text().replace(f"/opt/isthmus/bin/{name}", str(command)))
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
@each_unit
def test_the_service_is_exposed_to_little(name):
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(HERE / f"{name}.service"))
    assert done.returncode == 0, done.stdout
    assert float(re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)[1]) <= MOST_EXPOSED / 10


@each_unit
def test_readiness_liveness_and_a_user_of_its_own(name):
    assert setting(name, "Type") == ["notify"]
    assert setting(name, "WatchdogSec") == ["30"]
    assert setting(name, "DynamicUser") == ["yes"]
    assert setting(name, "StateDirectory") == [name]
    assert setting(name, "EnvironmentFile") == [f"-/etc/default/{name}"]


def test_restarts_stop_where_the_exit_code_says_that_none_would_help():
    assert setting("cloud-trainer", "RestartPreventExitStatus") == [f"{ExitCode.USAGE:d} {ExitCode.CONFIG:d}"]
    page = " ".join((ROOT / "docs" / "operations.md").read_text().split())
    told = re.search(r"systemd starts the agent again after (.*?), and not after (.*?), which", page)
    assert told is not None
    again, lasting = ([int(code) for code in re.findall(r"\d+", codes)] for codes in told.groups())
    assert setting("edge-agent", "RestartPreventExitStatus") == [" ".join(f"{code:d}" for code in lasting)]
    assert {ExitCode.PROTOCOL, ExitCode.REFUSED, ExitCode.ACCESS, ExitCode.GONE} <= set(lasting)
    assert set(again).isdisjoint(lasting)
    assert setting("edge-agent", "SuccessExitStatus") == [f"{ExitCode.TERMINATED:d}"]


def test_both_units_forbid_the_same_but_for_devices_and_priorities():
    def forbidden(name):
        lines = (HERE / f"{name}.service").read_text().partition("CapabilityBoundingSet=")[2].splitlines()
        return [line for line in lines if line and not re.search("Device|setpriority|^#", line)]

    assert forbidden("edge-agent") == forbidden("cloud-trainer")


_BUILD = "import setuptools; setuptools.setup()"
_BEGIN = """
import os, isthmus_entry_points, shared, edge_agent, cloud_trainer
ours = (isthmus_entry_points, shared, edge_agent, cloud_trainer)
assert all(one.__file__.startswith(os.getcwd()) for one in ours), isthmus_entry_points.__file__
"""
_READ_DIGITS = "from edge_agent.data import digits; print(len(digits('train')), len(digits('test')))"


@pytest.mark.parametrize("copied", [copied_by_install, copied_into_images], ids=["install.sh", "Dockerfile"])
def test_what_is_copied_is_there_and_is_all_that_the_package_consists_of(copied):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setuptools = project["tool"]["setuptools"]
    folders = [name.removesuffix("*") for name in setuptools["packages"]["find"]["include"]]
    modules = [f"{name}.py" for name in setuptools["py-modules"]]
    described = ["pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]]
    assert sorted(copied()) == sorted([*folders, *modules, *described])
    assert [name for name in copied() if not (ROOT / name).exists()] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the package from the files that install.sh copies."""
    copy = tmp_path_factory.mktemp("copy")
    for name in copied_by_install():
        there = ROOT / name
        if there.is_dir():
            shutil.copytree(there, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(there, copy / name)
    subprocess.run([sys.executable, "-c", _BUILD, "-q", "build", "--build-lib", "built"], cwd=copy, check=True)
    return copy / "built"


def run_built(built, program, *arguments):
    """Return the output of a program that finds our packages in the build only."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=built,
        env={**os.environ, "PYTHONPATH": str(built), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("command", UNITS)
def test_what_is_copied_builds_a_package_whose_commands_run_without_the_checkout(built, command):
    program = _BEGIN + f"isthmus_entry_points.{command.replace('-', '_')}()"
    assert "[checkpoints]" in run_built(built, program, "config", "--example")


@pytest.mark.slow
def test_the_package_that_is_built_carries_the_digits_and_whose_they_are(built):
    assert run_built(built, _BEGIN + _READ_DIGITS) == "1437 360\n"
    assert "10.24432/C50P49" in (built / "edge_agent" / "data" / "uci_digits" / "README.md").read_text()


def test_the_installer_is_a_sound_shell_script():
    done = subprocess.run([SCRIPTS / "shellcheck", HERE / "install.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
