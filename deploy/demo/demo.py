"""`make demo`: a trainer and an agent, two real processes on loopback, train one model across a cut.

Nothing is left running, whatever ends it: the trainer is this script's child and is stopped on the way out.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = Path(sys.executable).parent
START_TIMEOUT_SECONDS = 60.0


def wait_for_address(trainer: subprocess.Popen[bytes], address_file: Path) -> str:
    """What the trainer listens on, once it does. Exits with its code when it ends first."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if address_file.exists():
            return address_file.read_text().strip()
        if trainer.poll() is not None:
            sys.exit(trainer.returncode)
        time.sleep(0.05)
    sys.exit(f"the trainer did not listen within {START_TIMEOUT_SECONDS:g} s")


def trainer_command(address_file: Path) -> list[str | Path]:
    """What starts the demo's trainer, which writes its address to `address_file`."""
    flags = [f"--config={HERE / 'trainer.toml'}", f"--set=server.address_file={address_file}"]
    return [SCRIPTS / "cloud-trainer", "serve", *flags]


def main() -> int:
    """Run both and return the agent's exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as scratch:
        address_file = Path(scratch) / "address"
        trainer = subprocess.Popen(trainer_command(address_file))
        try:
            address = wait_for_address(trainer, address_file)
            print(f"trainer: process {trainer.pid} at {address}", flush=True)
            agent = [
                SCRIPTS / "edge-agent",
                "run",
                f"--config={HERE / 'edge.toml'}",
                f"--trainer={address}",
                *sys.argv[1:],
            ]
            return subprocess.run(agent, check=False).returncode
        except KeyboardInterrupt:
            return 130
        finally:
            trainer.terminate()
            trainer.wait()


if __name__ == "__main__":
    sys.exit(main())
