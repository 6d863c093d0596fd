"""Trainers and agents as processes of their own, for measurements."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.net import Link
from shared.errors import IsthmusError

_LOG_BYTES = 1 << 20


class Trainer:
    """A running trainer process that allows the benchmarks' models; `address` is where it listens by now."""

    def __init__(
        self, *overrides: str, wrapper: Sequence[str] = (), listen: str = "127.0.0.1:0", tree: Path | None = None
    ) -> None:
        """overrides: section.key=value. wrapper: a command to run it under (a network namespace, a core).

        tree: the checkout whose trainer it is; None for the one that is imported here.
        """
        flags = [f"server.listen={listen}", "server.insecure=true", "log.format=json"]
        flags += ['models.allowed=["benchmarks", "shared.model.zoo"]']
        command = [*wrapper, sys.executable, "-m", "cloud_trainer.main", "serve"]
        self._process = subprocess.Popen(
            [*command, *(f"--set={flag}" for flag in [*flags, *overrides])],
            cwd=tree,
            env=_environment(tree),
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stderr is not None
        # What it logs of many sessions is read at its end, and must not stop it until then.
        fcntl.fcntl(self._process.stderr, fcntl.F_SETPIPE_SZ, _LOG_BYTES)
        self.address = _logged(self._process, "listening", "address")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """End it by SIGTERM, if it still runs."""
        _stop(self._process)


@contextmanager
def trainer_process(*overrides: str, wrapper: Sequence[str] = (), listen: str = "127.0.0.1:0") -> Iterator[str]:
    """A `Trainer` while the body runs; yields its address."""
    trainer = Trainer(*overrides, wrapper=wrapper, listen=listen)
    try:
        yield trainer.address
    finally:
        trainer.stop()


@contextmanager
def trainer_across(link: Link) -> Iterator[str]:
    """A `Trainer` with one thread at the cloud's end of a link while the body runs; yields its address."""
    flags = ("compute.threads=1", "compute.device=cpu")
    with trainer_process(*flags, wrapper=link.cloud.command([]), listen=f"{link.cloud.address}:0") as address:
        yield address


@dataclass(frozen=True)
class Span:
    """The work of a phase in one step; seconds on the edge's clock, from the first span of the run."""

    phase: str
    what: str
    step: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class AgentRun:
    """A finished agent process."""

    spans: list[Span]
    summary: dict[str, Any]
    peak_resident_bytes: int

    def ends(self, phase: str, what: str) -> list[float]:
        """Return the times at which `what` was done in each step, alone or in one go with more, in the order of
        steps."""
        chosen = sorted(
            (span.step, span.end_seconds)
            for span in self.spans
            if span.phase == phase and what in span.what.split(", ")
        )
        return [end for _, end in chosen]

    def step_ends(self) -> list[float]:
        """Return the times at which this device was done with each step, in the order of steps."""
        ends: dict[int, float] = {}
        for span in self.spans:
            if span.phase == "edge":
                ends[span.step] = max(ends.get(span.step, 0.0), span.end_seconds)
        return [end for _, end in sorted(ends.items())]


class Agent:
    """A running agent process; `session` is known once its training has begun."""

    def __init__(
        self, address: str | None, flags: Sequence[str], wrapper: Sequence[str] = (), tree: Path | None = None
    ) -> None:
        """address: of the trainer; None where the flags name trainers. flags: section.key=value. wrapper: to run it under.

        tree: see `Trainer`.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="isthmus-")
        named = [] if address is None else [f"trainer.address={address}"]
        fixed = [*named, f"output.directory={self._folder.name}", "log.format=json"]
        traced = f"output.trace={self._folder.name}/trace.json"
        command = [*wrapper, sys.executable, "-m", "edge_agent.main", "run"]
        self._process = subprocess.Popen(
            [*command, *(f"--set={flag}" for flag in [*fixed, traced, *flags])],
            cwd=tree,
            env=_environment(tree),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.session = _logged(self._process, "session opened", "session")

    def wait(self) -> AgentRun:
        """Wait for its end and read what it leaves."""
        assert self._process.stderr is not None
        errors = self._process.stderr.read()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode != 0:
            raise IsthmusError(f"the agent ended with {self._process.returncode}: {errors.strip()[-2000:]}")
        folder = Path(self._folder.name)
        summary = json.loads((folder / "summary.json").read_text())
        spans = [
            Span(
                event["cat"],
                event["name"].rpartition(" ")[0],
                event["args"]["step"],
                event["ts"] / 1e6,
                (event["ts"] + event["dur"]) / 1e6,
            )
            for event in json.loads((folder / "trace.json").read_text())["traceEvents"]
            if event["ph"] == "X"
        ]
        self._folder.cleanup()
        return AgentRun(spans, summary, usage.ru_maxrss * 1024)

    def stop(self) -> None:
        """End it before its time; nothing is read of what it leaves."""
        _stop(self._process)
        self._folder.cleanup()


def run_agent(address: str | None, flags: Sequence[str], wrapper: Sequence[str] = ()) -> AgentRun:
    """One whole run of an agent in a process of its own; see `Agent`."""
    return Agent(address, flags, wrapper).wait()


def _environment(tree: Path | None) -> dict[str, str]:
    return {**os.environ, **({"PYTHONPATH": str(tree)} if tree is not None else {})}


def _stop(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:
        process.terminate()
        process.communicate()


def _logged(process: subprocess.Popen[str], event: str, field: str) -> str:
    """A field of the first log line about `event`; reading the log waits exactly as long as needed."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (entry := json.loads(line)).get("event") == event:
            return str(entry[field])
        sys.stderr.write(line)
    raise IsthmusError(f"a process ended with {process.wait()} before it logged {event!r}")
