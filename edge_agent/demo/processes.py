"""The processes of a demo: trainers on loopback, each stopped on the way out, whatever ends the demo."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shared.errors import ConfigError

FILES = Path(__file__).resolve().parent
"""Folder of the demos' configurations, and of recorded links, profiles and paths."""
START_TIMEOUT_SECONDS = 60.0


def script(name: str) -> str:
    """Return the path of one of our two commands: beside this Python, or where the shell finds it. Raises ConfigError."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise ConfigError(
            f"{name} is neither beside {sys.executable} nor on the PATH; install isthmus into one environment"
        )
    return found


def wait_for_address(trainer: subprocess.Popen[bytes], address_file: Path) -> str:
    """Wait until the trainer listens, and return its address. Exits with the trainer's code when it ends first."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if address_file.exists():
            return address_file.read_text().strip()
        if trainer.poll() is not None:
            sys.exit(trainer.returncode)
        time.sleep(0.05)
    sys.exit(f"the trainer did not listen within {START_TIMEOUT_SECONDS:g} s")


def trainer_command(address_file: Path, *flags: str) -> list[str]:
    """Return the command that starts a trainer of the demo, which writes its address to `address_file`."""
    given = [f"--config={FILES / 'trainer.toml'}", f"--set=server.address_file={address_file}"]
    return [script("cloud-trainer"), "serve", *given, *(f"--set={flag}" for flag in flags)]


@contextmanager
def running_trainer(
    address_file: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A trainer and its address, stopped on the way out. environment: its variables; None is those of this process."""
    trainer = subprocess.Popen(trainer_command(address_file, *flags), env=environment)
    try:
        yield trainer, wait_for_address(trainer, address_file)
    finally:
        trainer.terminate()
        trainer.wait()


def end_on_sigterm() -> None:
    """Let SIGTERM unwind as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
