"""Two months of an agent whose trainer comes and goes, in virtual time: `python -m tests.support.outages` prints what it costs.

The agent's side is the real one: its recovery, its waits and its record on disk. The trainer is as simple as the
contract lets it be: it takes an attach with a higher term than any before, unless it is away or has no room.
"""

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import structlog

from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.session_record import SessionRecord
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.training.checkpointer import Checkpointer
from edge_agent.training.listener import RunListener
from edge_agent.training.live_deployment import LiveDeployment
from edge_agent.training.recovery import Recovery
from edge_agent.training.training_stream import TrainingStream
from edge_agent.training.window import Window
from shared.checkpoint import LocalFiles
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import BusyError, FencedError, UnreachableError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.virtual import InlineWorker, run_virtually

DAY_SECONDS = 86_400.0
RETRY_SECONDS = 30.0
"""What a trainer without room says."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The trainer is away, or has no room."""

    begin_seconds: float
    seconds: float
    kind: str
    """silent: nothing answers. half: probes are answered, and the answer to every attach is lost. busy: there is no room."""


@dataclass(slots=True)
class Absence:
    """What the agent did in one outage."""

    outage: Outage
    attempts: int = 0
    writes: int = 0
    late_seconds: float = 0.0
    """From the end of the outage, or from the loss of the stream after it, to the next attached stream."""


@dataclass(slots=True)
class Months:
    """What came of it."""

    absences: list[Absence] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    """Those that the trainer took, in order."""
    writes: int = 0
    seconds: float = 0.0
    attached: bool = False

    @property
    def attempts(self) -> int:
        """The attempts of all absences."""
        return sum(absence.attempts for absence in self.absences)


def weather(seed: int, days: float, kinds: tuple[str, ...] = ("silent", "half", "busy")) -> list[Outage]:
    """Outages of seconds to days, one after the other, and in the middle one of a week."""
    draw, outages, now = random.Random(seed), list[Outage](), 0.0
    while True:
        now += draw.expovariate(1 / 7200.0) + 1.0
        is_week = now > days * DAY_SECONDS / 3 and not any(outage.seconds == 7 * DAY_SECONDS for outage in outages)
        seconds = 7 * DAY_SECONDS if is_week else min(1.0 * 10 ** draw.uniform(0.0, 5.0), 2 * DAY_SECONDS)
        if now + seconds > days * DAY_SECONDS:
            return outages
        outages.append(Outage(now, seconds, "silent" if is_week else draw.choice(kinds)))
        now += seconds


class _Trainer:
    """The trainer as `TrainingStream` sees it through a `TrainerClient`."""

    address = "trainer"

    def __init__(self, months: Months) -> None:
        self._months = months
        self._highest = 0

    @property
    def _outage(self) -> Outage | None:
        absences = self._months.absences
        if not absences or time.monotonic() >= absences[-1].outage.begin_seconds + absences[-1].outage.seconds:
            return None
        return absences[-1].outage

    async def check_serving(self) -> None:
        if self._months.absences:
            self._months.absences[-1].attempts += 1
        if self._outage is not None and self._outage.kind == "silent":
            raise UnreachableError("nobody answers")

    async def attach(self, attach: pb.Attach, *_: object) -> tuple[Any, pb.Attached]:
        if attach.session_term <= self._highest:
            raise FencedError(f"term {attach.session_term} came after {self._highest}")
        if self._outage is not None and self._outage.kind == "busy":
            raise BusyError("no room", RETRY_SECONDS)
        self._highest = attach.session_term  # before the answer, which may be lost
        if self._outage is not None:
            raise UnreachableError("the answer was lost")
        self._months.terms.append(attach.session_term)
        call = SimpleNamespace(stream=SimpleNamespace(quiet_seconds=0.0), cancel=lambda: None)
        return call, pb.Attached(next_step=attach.position.report_step)


class _CountedFiles(LocalFiles):
    """Counts what would be written, which an SD card wears by."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.writes = 0
        self._created: list[str] = []

    def write(self, _name: str, _data: bytes) -> None:
        self.writes += 1

    def create(self, name: str) -> bool:
        self.writes += 1
        self._created = [name]
        return True

    def names(self) -> list[str]:
        return self._created

    def remove(self, _name: str) -> None:
        pass


def live_through(outages: list[Outage], seconds: float) -> Months:
    """An agent that trains for so long and loses its stream at the beginning of each outage."""

    async def main() -> Months:
        files, months = _CountedFiles(), Months()
        record = SessionRecord.model_construct(session_id="s", shared=None)
        stored, retry, listener, window = StoredSession(record, files, 1), Retry(None), RunListener(), Window()
        client, disk = cast(TrainerClient, _Trainer(months)), InlineWorker()
        training_stream = TrainingStream(client, stored, disk, window, listener)
        recovery = Recovery(
            cast(OpenSession, SimpleNamespace(retry=retry)),
            training_stream,
            window,
            LiveDeployment(pb.Deployment(), listener),
            cast(Checkpointer, SimpleNamespace(note_stream_lost=lambda: None)),
        )
        began = time.monotonic()
        await recovery.attach_first(resumed=False)
        for planned in outages:
            outage = Outage(began + planned.begin_seconds, planned.seconds, planned.kind)
            await asyncio.sleep(max(outage.begin_seconds - time.monotonic(), 0.0))
            steps = round(time.monotonic() - began)
            window.restart(steps)
            months.absences.append(Absence(outage))
            before, lost_seconds = files.writes, time.monotonic()
            await recovery.reattach(UnreachableError("the link was lost"))
            absence = months.absences[-1]
            absence.writes = files.writes - before
            absence.late_seconds = time.monotonic() - max(outage.begin_seconds + outage.seconds, lost_seconds)
        await asyncio.sleep(max(began + seconds - time.monotonic(), 0.0))
        months.writes, months.seconds, months.attached = (
            files.writes,
            time.monotonic() - began,
            training_stream.attached,
        )
        training_stream.drop()
        return months

    return run_virtually(main)


def main() -> None:
    """Print the figures of three kinds of weather."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for kinds in (("silent",), ("silent", "busy"), ("silent", "half", "busy")):
        months = live_through(weather(0, 60.0, kinds), 60 * DAY_SECONDS)
        week = max(months.absences, key=lambda absence: absence.outage.seconds)
        print(
            f"{' '.join(kinds)}: {len(months.absences)} outages in {months.seconds / DAY_SECONDS:.0f} days, {months.attempts} "
            f"attempts, {months.writes} writes, attached at the end: {months.attached}; the week offline: {week.attempts} "
            f"attempts, {week.writes} writes"
        )


if __name__ == "__main__":
    main()
