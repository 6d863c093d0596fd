"""Time until a run goes on after a loss: `python -m benchmarks.recovery [--json PATH]`.

A real agent and a real trainer, K = 0. The link is cut for a few seconds, in three ways: connections are reset and new ones
refused (a relay that goes away), the devices go down, and packets are lost in silence (the last two between network
namespaces, left out where none can be made). Counted from the moment at which the repair begins to the next step that the
edge has applied; goal 1 s. And the trainer is killed (SIGKILL) and started again: counted from the moment at which it says
that it listens; goal 3 s. The steps are read from the edge's step log, where a line stands for a step that was applied.
"""

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bound import deployed
from benchmarks.net import Link, Relay
from benchmarks.net.namespaces import missing
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.processes import Agent, Trainer, trainer_process
from benchmarks.support.report import Spread, write_json
from shared.errors import IsthmusError

LINK_GOAL_SECONDS, TRAINER_GOAL_SECONDS = 1.0, 3.0
CUT_SECONDS = (2.0, 2.6, 3.2, 3.8, 4.4, 5.0)
"""Lengths of the cuts: different, so that waits which double meet the end of a cut at different points."""
KILLS = 8
STEP_SECONDS = 0.02
"""Time that the blocks take of each step."""
CHECKPOINT_STEPS = 20
BETWEEN_STEPS = 40
"""Steps between two losses: more than a checkpoint takes to be shared."""
TRAINER_FLAGS = ["compute.threads=1", "compute.device=cpu"]
PATIENCE_SECONDS = 60.0
RTO_MAX, RTO_MAX_MILLISECONDS = "/proc/sys/net/ipv4/tcp_rto_max_ms", 1000
_LOOK_SECONDS = 0.001


@dataclass(frozen=True)
class Recovery:
    """Seconds of each repeat from the end of a kind of loss to the next step."""

    loss: str
    goal_seconds: float
    seconds: list[float]


class Steps:
    """The steps that the edge has applied, as its log grows."""

    def __init__(self, folder: Path, session: str) -> None:
        self._log = (folder / f"{session}-edge.steps").open("a+")  # the agent may not have made it yet

    def skip(self) -> None:
        """Forget what was applied up to now."""
        self._log.read()

    def next(self, count: int = 1) -> float:
        """Return the moment at which so many more have been applied, on the monotonic clock. Raises IsthmusError after
        a minute without."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit:
            count -= sum(line.startswith("applied") for line in self._log)
            if count <= 0:
                return time.monotonic()
            time.sleep(_LOOK_SECONDS)
        raise IsthmusError(f"no step was applied for {PATIENCE_SECONDS:g} s")


def agent_flags(folder: Path) -> list[str]:
    """The flags of a run that does not end by itself, and stores what it needs in `folder`."""
    work = f'compute="sleep", edge=[{STEP_SECONDS / 4}, {STEP_SECONDS / 4}], cloud=[{STEP_SECONDS / 4}, {STEP_SECONDS / 4}]'
    return [
        'model.factory="benchmarks.networks:timed_halves"',
        f"model.kwargs={{{work}, feature_floats=500}}",
        'data.train={factory="benchmarks.networks:RandomImages", kwargs={size=1}}',
        "training.epochs=1000000",
        "training.evaluate_every_epochs=0",
        "deployment.cut=1",
        "compute.threads=1",
        "compute.device=cpu",
        f"checkpoints.location={folder / 'edge'}",
        f"checkpoints.step_log={folder}",
        f"checkpoints.every_steps={CHECKPOINT_STEPS}",
    ]


@contextmanager
def training(address: str, folder: Path, wrapper: list[str]) -> Iterator[Steps]:
    """An agent that trains with the trainer at `address`."""
    agent = Agent(address, agent_flags(folder), wrapper)
    try:
        yield Steps(folder, agent.session)
    finally:
        agent.stop()


def after_cuts(steps: Steps, cut: Callable[[], None], restore: Callable[[], None]) -> list[float]:
    """Seconds of each cut."""
    seconds = []
    for away_seconds in CUT_SECONDS:
        steps.next(BETWEEN_STEPS)
        cut()
        time.sleep(away_seconds)
        steps.skip()
        began = time.monotonic()
        restore()
        seconds.append(steps.next() - began)
    return seconds


class ClosableRelay:
    """A relay to the trainer at an address, on a loop of its own, that goes away and comes back at the same port."""

    def __init__(self, trainer: str) -> None:
        self._trainer_port = int(trainer.rpartition(":")[2])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._relay = Relay("127.0.0.1", self._trainer_port)
        self._wait(self._relay.__aenter__())
        self.address, self._port = self._relay.address, self._relay.port

    def close(self) -> None:
        """Reset what goes through it, and refuse what would."""
        self._wait(self._relay.__aexit__(None, None, None))

    def open(self) -> None:
        """Be there again."""
        self._relay = Relay("127.0.0.1", self._trainer_port, port=self._port)
        self._wait(self._relay.__aenter__())

    def end(self) -> None:
        """Close it for good."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, doing: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result()


def refused(folder: Path) -> list[float]:
    """Connections are reset, and new ones refused."""
    with trainer_process(*TRAINER_FLAGS, f"checkpoints.location={folder / 'trainer'}") as trainer:
        relay = ClosableRelay(trainer)
        try:
            with training(relay.address, folder, []) as steps:
                return after_cuts(steps, relay.close, relay.open)
        finally:
            relay.end()


def down(folder: Path) -> list[float]:
    """The devices of both sides go down."""
    with deployed("down") as (link, address), training(address, folder, link.edge.command([])) as steps:
        return after_cuts(steps, link.down, link.up)


def silent(folder: Path) -> list[float]:
    """Every packet is lost, and nobody is told."""
    with deployed("silent") as (link, address), training(address, folder, link.edge.command([])) as steps:
        return after_cuts(steps, lambda: link.lose(1, 1), lambda: link.lose(0, 0))


def shorten_timeouts(link: Link) -> None:
    """Make both kernels wait at most a second before they send again; sockets take it over when they are made."""
    for side in (link.edge, link.cloud):
        side.run(["sh", "-c", f"echo {RTO_MAX_MILLISECONDS} > {RTO_MAX}"], check=True)


def silent_with_short_timeouts(folder: Path) -> list[float]:
    """The same with another setting of the kernels (net.ipv4.tcp_rto_max_ms, Linux 6.15)."""
    with (
        deployed("silent", prepare=shorten_timeouts) as (link, address),
        training(address, folder, link.edge.command([])) as steps,
    ):
        return after_cuts(steps, lambda: link.lose(1, 1), lambda: link.lose(0, 0))


def killed(folder: Path) -> list[float]:
    """The trainer dies, and is started again at once."""
    flags = [*TRAINER_FLAGS, f"checkpoints.location={folder / 'trainer'}"]
    trainer = Trainer(*flags)
    try:
        with training(trainer.address, folder, []) as steps:
            seconds = []
            for _ in range(KILLS):
                steps.next(BETWEEN_STEPS)
                trainer.kill()
                trainer = Trainer(*flags, listen=trainer.address)
                began = time.monotonic()
                steps.skip()
                seconds.append(steps.next() - began)
            return seconds
    finally:
        trainer.stop()


def nothing_missing() -> str | None:
    """Return the reason that a case cannot run here: None for a case that works everywhere."""
    return None


def missing_timeouts() -> str | None:
    """Return the missing prerequisite of short timeouts, or None."""
    return missing() or (None if Path(RTO_MAX).exists() else "needs Linux 6.15")


LOSSES: dict[str, tuple[Callable[[Path], list[float]], float, Callable[[], str | None]]] = {
    "link: connections refused": (refused, LINK_GOAL_SECONDS, nothing_missing),
    "link: devices down": (down, LINK_GOAL_SECONDS, missing),
    "link: packets lost": (silent, LINK_GOAL_SECONDS, missing),
    f"the same, tcp_rto_max_ms = {RTO_MAX_MILLISECONDS}": (
        silent_with_short_timeouts,
        LINK_GOAL_SECONDS,
        missing_timeouts,
    ),
    "trainer killed": (killed, TRAINER_GOAL_SECONDS, nothing_missing),
}
"""Measurement and goal of each loss, and the function that gives the reason if it cannot be made here."""


def measure() -> list[Recovery]:
    """Every loss that can be made here."""
    measured = []
    for loss, (repeats, goal_seconds, reason_against) in LOSSES.items():
        if reason := reason_against():
            print(f"left out, {loss}: {reason}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as name:
            measured.append(Recovery(loss, goal_seconds, repeats(Path(name))))
    return measured


def main() -> None:
    """Measure and print the table."""
    parser = benchmark_parser("recovery", __doc__)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "what was lost", "repeats", "back to first new step, ms", "longest, ms", "goal, ms", "median", "longest"
    )
    recoveries = measure()
    for recovery in recoveries:
        spread, longest = Spread.of(recovery.seconds), max(recovery.seconds)
        table.add_row(
            recovery.loss,
            str(len(recovery.seconds)),
            spread.show(1e3, 0),
            f"{longest * 1e3:.0f}",
            f"{recovery.goal_seconds * 1e3:.0f}",
            *("kept" if seconds <= recovery.goal_seconds else "MISSED" for seconds in (spread.median, longest)),
        )
    console = Console(width=150)
    console.print(f"{machine()}; K = 0, cuts of {min(CUT_SECONDS):g} to {max(CUT_SECONDS):g} s; median (quartiles)")
    console.print(table)
    write_json(arguments.json, "recovery", recoveries=recoveries)


if __name__ == "__main__":
    main()
