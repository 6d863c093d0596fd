"""A Debian machine for a test: an overlay over a tree that is made once, booted by systemd-nspawn. Needs root.

What is costly to make is kept in run/deploy of the checkout: the tree, and the wheels of requirements.lock, so that the
machine itself needs no network. `rm -r run/deploy` starts from nothing.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.running import ROOT

CACHE = ROOT / "run" / "deploy"
SUITE, SUITES_PYTHON = "bookworm", (3, 11)
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,ca-certificates"
PATIENCE_SECONDS = 90


def needs(*commands: str) -> None:
    """Skip the test where it cannot run, and say what it wants."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def debian_tree() -> Path:
    """A small Debian with systemd and Python."""
    tree = CACHE / SUITE
    if not tree.exists():
        needs("debootstrap")
        making = tree.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(parents=True, exist_ok=True)
        options = ["--variant=minbase", f"--include={PACKAGES}"]
        subprocess.run(["debootstrap", *options, SUITE, str(making)], check=True, stdout=subprocess.DEVNULL)
        making.rename(tree)
    return tree


def wheels() -> Path:
    """Everything that requirements.lock names, for the tree's Python."""
    if sys.version_info[:2] != SUITES_PYTHON:
        pytest.skip(f"the wheels must be those of Python {SUITES_PYTHON}, which {SUITE} has")
    folder, lock = CACHE / "wheels", ROOT / "requirements.lock"
    stamp = folder / "lock"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "-r", str(lock), "-w", str(folder)]
        subprocess.run(command, check=True)
        stamp.write_text(lock.read_text())
    return folder


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {what}"
        time.sleep(0.1)


@contextmanager
def overlay(tree: Path, folder: Path) -> Iterator[Path]:
    """A copy of `tree` that may be written to, made in no time."""
    upper, work, merged = (folder / name for name in ("upper", "work", "merged"))
    for path in (upper, work, merged):
        path.mkdir()
    layers = f"lowerdir={tree},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(merged)], check=True)
    try:
        yield merged
    finally:
        subprocess.run(["umount", str(merged)], check=True)


_NSPAWN = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"]


def run_unbooted(root: Path, command: list[str], environment: Mapping[str, str], binds: Mapping[Path, str]) -> str:
    """Run a command in the tree before it is booted; returns what it printed. binds: from here to there, read-only."""
    options = [f"--bind-ro={here}:{there}" for here, there in binds.items()]
    options += [f"--setenv={name}={value}" for name, value in environment.items()]
    done = subprocess.run(
        [*_NSPAWN, "--pipe", *options, "-D", str(root), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Machine:
    """A booted machine."""

    def __init__(self, root: Path, init: int) -> None:
        self.root = root
        self._enter = ["nsenter", "-t", str(init), "-m", "-u", "-i", "-n", "-p", "--"]

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command as root in it; returns what it printed."""
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shell(self, **environment: str) -> list[str]:
        """Return the command that runs a line of shell in it, given as one more argument, with nothing in the
        environment but this."""
        return [*self._enter, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), "sh", "-c"]

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return the properties that systemd shows of a unit."""
        text = self.run("systemctl", "show", unit, *(f"--property={name}" for name in properties))
        return dict(line.split("=", 1) for line in text.splitlines())


@contextmanager
def booted(root: Path, name: str) -> Iterator[Machine]:
    """The tree's own systemd, up."""
    command = [*_NSPAWN, "-b", "-D", str(root), f"--machine={name}", "--console=pipe"]
    nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
    try:
        wait_until(lambda: bool(children.read_text().split()), "an init process")
        machine = Machine(root, int(children.read_text().split()[0]))
        wait_until(lambda: machine.run("systemctl", "is-system-running", check=False) in _UP, "a booted system")
        yield machine
    finally:
        nspawn.terminate()
        nspawn.wait()


_UP = ("running\n", "degraded\n")
