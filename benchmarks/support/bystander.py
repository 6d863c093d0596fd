"""A process that has nothing to do with a run, and builds the model of one as a trainer does: `python -m
benchmarks.support.bystander FLAG...`, driven by `Bystander`.

Beside a run on the same cores it shows what building alone takes from the run's steps.
"""

import subprocess
import sys
from collections.abc import Sequence

import torch

from cloud_trainer.sessions.building import open_model
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.threads import BUILDING_NICENESS
from edge_agent import EdgeConfig
from edge_agent.experiment.building import Experiment
from edge_agent.sessions.messages import opening_request
from shared.concurrency.threads import yield_to_others
from shared.config import load_config
from shared.placement import AGENT

_LIMITS = Limits(tensor_bytes=1 << 30, staleness=64, session_bytes=1 << 34)


class Bystander:
    """The process, which waits between two builds. End it with `stop`."""

    def __init__(self, flags: Sequence[str]) -> None:
        """flags: section.key=value, of an agent. Waits until the process is ready."""
        command = [sys.executable, "-m", "benchmarks.support.bystander", *flags]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear()

    def build(self) -> None:
        """Have it build the model once, and wait for that."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._hear()

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.readline()


def main() -> None:
    """Build whenever standard input has another line."""
    torch.set_num_threads(1)
    experiment = Experiment(load_config(EdgeConfig, None, sys.argv[1:], environ={}))
    trainer = next(worker for worker in experiment.placement.workers if worker != AGENT)
    request = opening_request(experiment, trainer, experiment.placement)
    yield_to_others(BUILDING_NICENESS)
    open_model(request, [request.model.factory], _LIMITS)  # what the first build imports is no part of the others
    print("ready", flush=True)
    for _ in sys.stdin:
        open_model(request, [request.model.factory], _LIMITS)
        print("built", flush=True)


if __name__ == "__main__":
    main()
