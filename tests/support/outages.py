"""Two months of an agent whose trainer comes and goes, in virtual time: `python -m tests.support.outages` prints what it costs.

The agent's side is the real one: its links, its recovery, its waits and its record on disk. The trainer is as simple as the
contract lets it be: it is joined with a higher term than any before, unless it is away or has no room.
"""

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import structlog

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.membership import Membership
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.session_record import SessionRecord
from edge_agent.sessions.session_state import SessionState
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.sessions.trainer_worker import TrainerWorker
from edge_agent.training.links import Links
from edge_agent.training.recovery import Recovery
from shared.checkpoint import LocalFiles
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.errors import BusyError, FencedError, SessionLostError, UnreachableError
from shared.events import ignore
from shared.placement import PlacementPlan, two_workers
from shared.runtime.placement_executor import PlacementExecutor
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.virtual import InlineWorker, run_virtually

DAY_SECONDS = 86_400.0
RETRY_SECONDS = 30.0
"""Delay that a trainer without room asks for."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The trainer is away, or has no room."""

    begin_seconds: float
    seconds: float
    kind: str
    """silent: nothing answers. half: probes are answered, and the answer to every join is lost. busy: there is no room."""


@dataclass(slots=True)
class Absence:
    """The agent's actions in one outage."""

    outage: Outage
    attempts: int = 0
    writes: int = 0
    late_seconds: float = 0.0
    """From the end of the outage, or from the loss of the link after it, to the next link."""


@dataclass(slots=True)
class Months:
    """The outcome of the outages."""

    absences: list[Absence] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    """Terms that the trainer was joined with, in order."""
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
    """The trainer as links and `OpenSession` see it through a `TrainerClient`."""

    address = "trainer"

    def __init__(self, months: Months) -> None:
        self._months = months
        self._highest = 0
        self.is_joined = False
        """True if it has the session in memory, joined; a process that takes the place of another has not."""

    @property
    def _outage(self) -> Outage | None:
        absences = self._months.absences
        if not absences or time.monotonic() >= absences[-1].outage.begin_seconds + absences[-1].outage.seconds:
            return None
        return absences[-1].outage

    def _answer(self) -> None:
        if self._months.absences:
            self._months.absences[-1].attempts += 1
        if self._outage is not None and self._outage.kind == "silent":
            raise UnreachableError("nobody answers")

    async def check_serving(self) -> None:
        self._answer()

    async def join_session(self, _session_id: str, term: int, _others: object) -> pb.JoinSessionResponse:
        if term <= self._highest:
            raise FencedError(f"term {term} came after {self._highest}")
        if self._outage is not None and self._outage.kind == "busy":
            raise BusyError("no room", RETRY_SECONDS)
        self._highest = term  # before the answer, which may be lost
        if self._outage is not None:
            raise UnreachableError("the answer was lost")
        self._months.terms.append(term)
        self.is_joined = True
        return pb.JoinSessionResponse(whole=True)

    async def link(self, *_: object) -> tuple[Any, str]:
        self._answer()
        if not self.is_joined:
            raise SessionLostError("there is no such session in memory")
        return SimpleNamespace(stream=None, end_writing=None, cancel=lambda: None), ""


class _Executor:
    """The worker's executor as `Links` see it: served until its link is lost."""

    def __init__(self) -> None:
        self.worker, self.has_failed = "edge", False
        self.ends = {"trainer": SimpleNamespace(accept=None, note_delivered=None, position=0)}
        self.window = SimpleNamespace(owed=None)
        self.up, self.lost = asyncio.Event(), asyncio.Event()

    def keep_links(self) -> None:
        pass

    async def serve(self, *_: object) -> None:
        self.lost.clear()
        self.up.set()
        await self.lost.wait()
        raise UnreachableError("the link was lost")

    def lose_link(self) -> None:
        self.ends["trainer"].position += 1  # it was up for a while
        self.up.clear()
        self.lost.set()


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
    """An agent that trains for so long and loses its link at the beginning of each outage."""

    async def main() -> Months:
        files, months, executor = _CountedFiles(), Months(), _Executor()
        trainer = _Trainer(months)
        record = SessionRecord.model_construct(session_id="s", shared=None, trainer_sessions={"trainer": "s"})
        config = SimpleNamespace(checkpoints=SimpleNamespace(replicas=0))
        state = SessionState(
            StoredSession(record, files, 1),
            cast(Experiment, SimpleNamespace(chain=SimpleNamespace(blocks=()), config=config)),
            cast(AgentThreads, SimpleNamespace(disk=InlineWorker())),
            cast(PlacementPlan, SimpleNamespace(placement=two_workers("edge", "trainer", 1, 2, 1))),
        )
        member = TrainerWorker("trainer", cast(TrainerClient, trainer), "s", state)
        session = OpenSession(state, Membership({"trainer": member}, (), state.placement, {}), Retry(None))
        training = asyncio.create_task(_train(session, executor))
        began = time.monotonic()
        await executor.up.wait()
        for planned in outages:
            outage = Outage(began + planned.begin_seconds, planned.seconds, planned.kind)
            await asyncio.sleep(max(outage.begin_seconds - time.monotonic(), 0.0))
            months.absences.append(Absence(outage))
            trainer.is_joined = outage.kind == "silent"  # else another process has taken its place
            before, lost_seconds = files.writes, time.monotonic()
            executor.lose_link()
            await executor.up.wait()
            absence = months.absences[-1]
            absence.writes = files.writes - before
            absence.late_seconds = time.monotonic() - max(outage.begin_seconds + outage.seconds, lost_seconds)
        await asyncio.sleep(max(began + seconds - time.monotonic(), 0.0))
        months.writes, months.seconds, months.attached = files.writes, time.monotonic() - began, executor.up.is_set()
        training.cancel()
        await asyncio.wait({training})
        return months

    return run_virtually(main)


async def _train(session: OpenSession, executor: _Executor) -> None:
    recovery = Recovery(session, cast(DeviceWorker, None))
    while True:
        await session.retry.run(recovery.join_or_go_back)
        with suppress(SessionLostError):
            async with Links(session, cast(PlacementExecutor, executor), ignore) as links:
                await links.failure


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
