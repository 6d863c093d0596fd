"""The systemd units and the script that installs them, as the tools that judge such files see them."""

import re
import shutil
import subprocess

import pytest

from shared.errors import ExitCode
from tests.conftest import ROOT
from tests.support.running import SCRIPTS

HERE = ROOT / "deploy" / "systemd"
UNITS = ["edge-agent", "cloud-trainer"]
MOST_EXPOSED = 20
"""In tenths, as `systemd-analyze security` takes it."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
each_unit = pytest.mark.parametrize("name", UNITS)


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def setting(name, key):
    return re.findall(rf"^{key}=(.*)$", (HERE / f"{name}.service").read_text(), re.MULTILINE)


@needs_systemd
@each_unit
def test_the_unit_is_valid(name, tmp_path):
    # The command is not installed here, which is no fault of the unit.
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
    lasting = (
        ExitCode.USAGE,
        ExitCode.CONFIG,
        ExitCode.MODEL,
        ExitCode.DATA,
        ExitCode.REFUSED,
        ExitCode.GONE,
        ExitCode.DIVERGED,
    )
    assert setting("edge-agent", "RestartPreventExitStatus") == [" ".join(f"{code:d}" for code in lasting)]
    assert setting("edge-agent", "SuccessExitStatus") == [f"{ExitCode.TERMINATED:d}"]


def test_both_units_forbid_the_same_but_for_devices():
    def forbidden(name):
        lines = (HERE / f"{name}.service").read_text().partition("CapabilityBoundingSet=")[2].splitlines()
        return [line for line in lines if line and "Device" not in line and not line.startswith("#")]

    assert forbidden("edge-agent") == forbidden("cloud-trainer")


def test_the_installer_is_a_sound_shell_script():
    done = subprocess.run([SCRIPTS / "shellcheck", HERE / "install.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
