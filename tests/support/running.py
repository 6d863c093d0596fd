"""A trainer in this process, and trainers and agents as processes of their own."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cloud_trainer.config import TrainerConfig
from cloud_trainer.server import TrainerServer
from edge_agent.experiment.experiment import trainers_with_blocks
from edge_agent.training.choosers import Chooser
from edge_agent.training.events import Progressed, SessionOpened
from isthmus import EdgeConfig, TrainingResult, run_training
from shared.config import load_config
from shared.events import Events
from tests.support import forked
from tests.support.forked import Forked, program

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sys.executable).parent
ALLOWED = '["shared.model.zoo", "tests.support"]'
HASTE = "server.max_calls_per_second=1_000_000"
"""Tests ask as often as they can."""
GIVE_UP_AT_ONCE = "trainer.give_up_seconds=0"
"""A flag for an agent that is to say at once that a trainer is away or silent; one that waits says it in its log."""


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 that no other process gets meanwhile, where processes of ours can listen one after the other.

    Bound here and not listened on: a connection while none of ours is there is refused, and Linux lets another socket
    that says SO_REUSEADDR, as servers do, listen on it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def edge_config(*overrides: str) -> EdgeConfig:
    """An edge's configuration from flags alone, one thread; everything else is what users have."""
    flags = ["compute.threads=1", "compute.device=cpu", "control.listen=none"]
    return load_config(EdgeConfig, None, [*flags, *overrides], environ={})


def trainer_config(*overrides: str) -> TrainerConfig:
    """A trainer's configuration from flags alone: a free port, one thread, the tests' models allowed."""
    flags = [
        "server.listen=127.0.0.1:0",
        f"models.allowed={ALLOWED}",
        "compute.threads=1",
        "compute.device=cpu",
        "control.listen=none",
        HASTE,
    ]
    return load_config(TrainerConfig, None, [*flags, *overrides], environ={})


@asynccontextmanager
async def running_trainer(*overrides: str) -> AsyncIterator[TrainerServer]:
    """A trainer on a real socket, in this process and on this loop."""
    server = TrainerServer(trainer_config(*overrides))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def train_with(server: TrainerServer, *overrides: str) -> TrainingResult:
    """One whole run against a running trainer."""
    return await run_training(edge_config(*overrides, f"trainer.address={server.address}"))


class StandardError:
    """The standard error of a process, read as it comes: a full pipe must not stop the process. Its last lines are
    kept."""

    def __init__(self, process: subprocess.Popen[str] | Forked) -> None:
        self._process = process
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.last_lines: deque[str] = deque(maxlen=50)
        self.heard: list[dict[str, Any]] = []
        """The log entries that were waited for or passed over."""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def first_event(self, *names: str, least_step: int = 0) -> dict[str, Any]:
        """The first log entry of one of these names, and of this step or a later one, waited for exactly as long as needed.

        What came before it is passed over.
        """
        while (event := self._events.get()) is not None:
            self.heard.append(event)
            if event.get("event") in names and event.get("step", least_step) >= least_step:
                return event
        raise AssertionError(
            f"the process ended with {self._process.wait()} before it said {' or '.join(names)!r}: {self}"
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """All log entries, once the process has ended."""
        while (event := self._events.get()) is not None:
            self.heard.append(event)
        yield from self.heard

    def rest(self) -> list[dict[str, Any]]:
        """All log entries of a process that has ended, in order."""
        while (event := self._events.get()) is not None:
            self.heard.append(event)
        return self.heard

    def join(self) -> None:
        """Wait until the process has closed it."""
        self._reader.join()

    def __str__(self) -> str:
        return "".join(self.last_lines)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.last_lines.append(line)
            if line.startswith("{"):
                self._events.put(json.loads(line))
        self._events.put(None)


@contextmanager
def trainer_process(*overrides: str) -> Iterator[tuple[subprocess.Popen[str] | Forked, str]]:
    """A real trainer process and its address. An error on the way out says what the trainer said last."""
    with heard_trainer_process(*overrides) as (process, address, _):
        yield process, address


@contextmanager
def heard_trainer_process(
    *overrides: str, begun_by_python: bool = False
) -> Iterator[tuple[subprocess.Popen[str] | Forked, str, StandardError]]:
    """The same, and what the trainer says. begun_by_python: where what it sets before it imports gRPC matters."""
    flags = ["server.listen=127.0.0.1:0", f"models.allowed={ALLOWED}", "log.format=json", HASTE]
    arguments = ["serve", *(f"--set={flag}" for flag in [*flags, *overrides])]
    begin = _begun_by_python if begun_by_python else _forked
    process = begin("cloud_trainer.main", *arguments)
    said = StandardError(process)
    try:
        yield process, said.first_event("listening")["address"], said
    except BaseException as failure:
        failure.add_note(f"the trainer said last:\n{said}")
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        said.join()


@contextmanager
def agent_process(
    *overrides: str, output: Path | None = None, under: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str] | Forked, StandardError]]:
    """A real agent process that trains, and what it says; ended on the way out, if it has not. under: as of `run_agent`."""
    flags = [f"--set={flag}" for flag in ["log.format=json", *overrides]]
    place = [] if output is None else [f"--output={output}"]
    arguments = ["run", *flags, *place]
    begin = partial(_begun_by_python, under=under) if under else _forked
    process = begin("edge_agent.main", *arguments)
    said = StandardError(process)
    try:
        yield process, said
    except BaseException as failure:
        failure.add_note(f"the agent said last:\n{said}")
        raise
    finally:
        process.kill()
        process.wait()
        said.join()


def _forked(module: str, *arguments: str) -> Forked:
    return Forked(program, module, *arguments, stderr=subprocess.PIPE)


def _begun_by_python(module: str, *arguments: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [*under, sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run_agent(
    *arguments: str, under: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """An agent, run to its end. under: the command that it is to run under. environ: what its environment has besides.

    With either it is a process that Python began.
    """
    if not under and not environ:
        return forked.run("edge_agent.main", *arguments, timeout_seconds=240)
    return subprocess.run(
        [*under, sys.executable, "-m", "edge_agent.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **(environ or {})},
    )


def _ignore(_news):
    pass


def cut_at(deployer, *cuts):
    """Want the same workers at other cuts."""
    deployer.want(deployer.experiment.cut_at(cuts, deployer.placement), Chooser.OPERATOR)


def place(deployer, document):
    """Want what a decoded document says."""
    deployer.want(deployer.experiment.placed(document, deployer.placement), Chooser.OPERATOR)


def hand_over(deployer, name):
    """Want a trainer to have all that the first one with blocks has, unless it has some already, or none has."""
    having = trainers_with_blocks(deployer.placement)
    if having and name not in having:
        deployer.want(deployer.experiment.handed_over(deployer.placement, name, having[0]), Chooser.OPERATOR)


def emit_to(readers):
    """Return what emits to functions, by the type of event that they are called with."""
    events = Events()
    for kind, reader in readers.items():
        events.subscribe(kind, reader)
    return events.emit


class Listening:
    """Subscribes functions to a run: to its figures at each progress, to the deployer of its session, and to other events."""

    def __init__(self, progressed=_ignore, session_opened=_ignore, others=None):
        """others: functions by the type of event that they are called with."""
        self._progressed = progressed
        self._session_opened = session_opened
        self._others = others or {}

    def __call__(self, events):
        events.subscribe(Progressed, lambda event: self._progressed(event.statistics))
        events.subscribe(SessionOpened, lambda event: self._session_opened(event.run.deployer))
        for kind, reader in self._others.items():
            events.subscribe(kind, reader)
