"""An agent that trains one configuration after another: `python -m benchmarks.series`, driven by `Trainings`.

For comparisons of many deployments: each is a session of its own through the same code as `edge-agent run`, and only the
start of the process, long on a slow device, happens once. Knows nothing of what is compared.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any

from edge_agent import EdgeConfig
from edge_agent.observer import Progress
from edge_agent.run import train
from shared.config import load_config
from shared.errors import IsthmusError


@dataclass(frozen=True)
class Training:
    """A finished run."""

    ends: list[float]
    """When each step was done in the cloud, as the edge heard of it; seconds."""
    uplink_bits_per_second: float | None
    downlink_bits_per_second: float | None
    """What the agent measured last; None where it knew too little."""


class Trainings:
    """The other end of such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, flags: Sequence[str]) -> Training:
        """Train once. flags: section.key=value. Raises IsthmusError when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(list(flags)), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise IsthmusError(f"the agent ended with {self._process.wait()}; what it wrote stands above")
        return Training(**json.loads(line))


@contextmanager
def trainings(popen: Callable[..., subprocess.Popen[Any]]) -> Iterator[Trainings]:
    """Start the process where `popen` starts processes; it ends with the context."""
    process = popen(
        [sys.executable, "-m", "benchmarks.series"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Trainings(process)
    finally:
        process.terminate()
        process.communicate()


def trained(flags: list[str]) -> Training:
    """One run in this process."""
    ends: list[float] = []
    rates: list[tuple[float | None, float | None]] = []

    def note(progress: Progress) -> None:
        if progress.steps > len(ends):
            ends.append(time.monotonic())
            rates.append((progress.uplink_bits_per_second, progress.downlink_bits_per_second))

    train(load_config(EdgeConfig, None, flags, environ={}), note)
    return Training(ends, *rates[-1])


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer each line of flags with a line of results."""
    for line in requests:
        print(json.dumps(asdict(trained(json.loads(line)))), file=answers, flush=True)


def main() -> None:
    """Serve on the standard streams; whatever else prints goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        serve(sys.stdin, sys.__stdout__ or sys.stderr)


if __name__ == "__main__":
    main()
