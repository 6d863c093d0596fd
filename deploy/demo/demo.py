"""`make demo`: a trainer and an agent, two real processes on loopback, train one model across a cut.

Nothing is left running, whatever ends it: trainers are this script's children and are stopped on the way out.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = Path(sys.executable).parent
START_TIMEOUT_SECONDS = 60.0


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


def trainer_command(address_file: Path, *flags: str) -> list[str | Path]:
    """Return the command that starts a trainer of the demo, which writes its address to `address_file`."""
    given = [f"--config={HERE / 'trainer.toml'}", f"--set=server.address_file={address_file}"]
    return [SCRIPTS / "cloud-trainer", "serve", *given, *(f"--set={flag}" for flag in flags)]


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


def main() -> int:
    """Run both and return the agent's exit code."""
    end_on_sigterm()
    try:
        with (
            tempfile.TemporaryDirectory() as scratch,
            running_trainer(Path(scratch) / "address") as (trainer, address),
        ):
            print(f"trainer: process {trainer.pid} at {address}", flush=True)
            agent: list[str | Path] = [
                SCRIPTS / "edge-agent",
                "run",
                f"--config={HERE / 'edge.toml'}",
                f"--trainer={address}",
                *sys.argv[1:],
            ]
            return subprocess.run(agent, check=False).returncode
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
