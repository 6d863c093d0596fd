"""`make demo-tiers`: an agent and two trainers, three real processes on loopback, divide layers and samples of one step.

The division is planned for the machines that `tiers.json` describes. In the middle of the run the trainer that owns no block
is killed and started again: it begins again in mid-step, and nobody goes back. Nothing is left running, whatever ends it.
"""

import asyncio
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rich.console import Console

from edge_agent.commands.terminal import summary_table
from edge_agent.demo import processes
from edge_agent.training.events import Progressed, RolledBack
from isthmus import EdgeConfig, run_training
from shared.config import load_config
from shared.events import Events
from shared.telemetry.logs import configure_logs

NAMES = ("near", "gpu")
"""The trainers, the nearer one first; the nearer one dials the other."""
KILLED, KILLED_FROM = "gpu", 1 / 3
"""The trainer that is killed, and the part of the steps after which it is."""
AWAY_SECONDS = 1.0
TRAINER_FLAGS = ('peers.allowed=["127.0.0.1:*"]', "control.listen=none", "log.level=error")


def main() -> int:
    """Plan and train; returns the exit code."""
    processes.end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            scratch = Path(folder)
            trainers = {name: stack.enter_context(_Trainer(scratch / name)) for name in NAMES}
            placed = scratch / "placement.json"
            plan = ("plan", f"--profile={processes.FILES / 'tiers.json'}", "--bits=32", f"--placement-out={placed}")
            print(f"$ edge-agent {plan[0]}", flush=True)
            subprocess.run([processes.script("edge-agent"), *plan], check=True)
            listed = ", ".join(f'{{name = "{name}", address = "{one.address}"}}' for name, one in trainers.items())
            flags = [f"trainers=[{listed}]", f"placement.file={placed}", *sys.argv[1:]]
            config = load_config(EdgeConfig, processes.FILES / "tiers.toml", flags, environ={})
            _train(config, trainers[KILLED])
            return 0
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as failed:
        return failed.returncode


class _Trainer:
    """A trainer that can be killed and comes back at the same address."""

    def __init__(self, scratch: Path) -> None:
        """scratch: a folder of its own, which is not there yet. Its name is the trainer's."""
        scratch.mkdir()
        self._name, self._address_file = scratch.name, scratch / "address"
        self._process = self._started()
        self.address = ""

    def _started(self, *more: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(processes.trainer_command(self._address_file, *TRAINER_FLAGS, *more))

    def __enter__(self) -> Self:
        try:
            self.address = processes.wait_for_address(self._process, self._address_file)
        except BaseException:
            self.__exit__()
            raise
        print(f"{self._name}: process {self._process.pid} at {self.address}", flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def kill(self) -> None:
        """End it at once, with all that it has in memory."""
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        """Start it where it listened before."""
        self._process = self._started(f"server.listen={self.address}")


class _Showing:
    """Has the trainer killed and started again, and says what follows."""

    def __init__(self, trainer: _Trainer) -> None:
        self._trainer = trainer
        self._killed_step: int | None = None
        self._is_told = False
        self.went_back = False

    def subscribe(self, events: Events) -> None:
        """Read the run's events."""
        events.subscribe(Progressed, lambda event: self._note(event.statistics.steps, event.statistics.total_steps))
        events.subscribe(RolledBack, self._note_back)

    def _note_back(self, _event: RolledBack) -> None:
        self.went_back = True

    def _note(self, steps: int, total_steps: int) -> None:
        if self._killed_step is None and steps >= KILLED_FROM * total_steps:
            self._killed_step = steps
            self._trainer.kill()
            print(f"step {steps}: {KILLED} is killed", flush=True)
            asyncio.get_running_loop().call_later(AWAY_SECONDS, self._trainer.start_again)
        elif self._killed_step is not None and steps > self._killed_step + 1 and not self._is_told:
            self._is_told = True
            print(
                f"step {steps}: {KILLED} is back, and {'all went' if self.went_back else 'nobody went'} back",
                flush=True,
            )


def _train(config: EdgeConfig, trainer: _Trainer) -> None:
    configure_logs(config.log.level, config.log.format)
    print("$ edge-agent run", flush=True)
    result = asyncio.run(run_training(config, _Showing(trainer).subscribe))
    Console().print(summary_table(result.summary))


if __name__ == "__main__":
    sys.exit(main())
