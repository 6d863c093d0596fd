"""Probes of a run's candidates, every ten seconds, and of the best of them also the rates of the link and the time of blocks.

Work on the event loop begins calls and keeps answers. Who is worth measuring is the choice's to say.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import structlog

from edge_agent.adaptation.candidates.byte_budget import ByteBudget
from edge_agent.adaptation.candidates.probed import (
    Probed,
    affordable,
    check_would,
    measured_factor,
    measured_rates,
    probe,
)
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import WorkerProfile
from shared.client.credentials import trainer_access
from shared.client.link_measurement import LinkRates
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError, UnreachableError

_log = structlog.get_logger(__name__)

PROBE_SECONDS = 10.0
"""Interval of probes of one trainer."""
ANSWER_SECONDS = 5.0
"""Time in which a trainer in reach answers."""
MEASURE_SECONDS = 600.0
"""Time after which the rates and the time of blocks are measured again."""
SETTLED_SECONDS = 60.0
"""Least time between two such measurements of one trainer, however it changes."""
CHANGED_PART = 0.1
"""Part by which the seconds of a step have to change for another measurement."""
TRIPS = 3
"""Probes of which the shortest round trip counts: the others waited for something."""
LEFT_OUT_SECONDS = 600.0
"""Time for which a candidate that refused a handover is asked for none."""


@dataclass(slots=True)
class Known:
    """The knowledge of one trainer."""

    probed: Probed | None = None
    """The last answer; None before the first, and where the last probe failed."""
    absence: str = "it has not answered yet"
    """Reason why it cannot be chosen now; empty if it can."""
    trips: deque[float] = field(default_factory=lambda: deque(maxlen=TRIPS))
    probed_seconds: float = -math.inf
    """Time of the last probe, whether it was answered or not."""
    rates: LinkRates = field(default_factory=LinkRates)
    factor: float | None = None
    """Ratio of its times to those of the profile's trainer; None if it was not measured."""
    measured_seconds: float = -math.inf
    """Time of the last measurement."""
    step_seconds_then: float | None = None
    """Seconds of a step by the first look after it; None until then."""
    left_out_until: float = -math.inf
    has_failed: bool = False
    """True if the last probe failed."""

    @property
    def round_trip_seconds(self) -> float:
        """Return the round trip; 0 before the first answer."""
        return min(self.trips, default=0.0)


class CandidateProbes:
    """The probes of one run. Used on the event loop; the caller gives the clock, which is time.monotonic."""

    def __init__(self, experiment: Experiment, profiled: WorkerProfile, note_bytes: Callable[[int], object]) -> None:
        """profiled: the profile's trainer. note_bytes: called with the bytes of each probe."""
        config = experiment.config
        self._experiment, self._profiled, self._note_bytes = experiment, profiled, note_bytes
        self._trainers = {trainer.name: trainer for trainer in config.all_trainers}
        self.known = {name: Known() for name in self._trainers}
        self._budget = ByteBudget(config.choice.probe_bytes_per_minute)
        self._clients: dict[str, TrainerClient] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._measuring: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have connections for the probes while the body runs. On return no probe is under way."""
        config = self._experiment.config
        async with AsyncExitStack() as stack:
            for name, trainer in self._trainers.items():
                client = TrainerClient(trainer, config.link, access=trainer_access(trainer, config.tls))
                stack.push_async_exit(client)
                self._clients[name] = client
            try:
                yield
            finally:
                tasks = [*self._probing.values(), *([self._measuring] if self._measuring else [])]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def look(self, seconds: float, members: Collection[str]) -> None:
        """Begin the probes that are due. members: trainers that have a session of the run."""
        for name, known in self.known.items():
            if seconds - known.probed_seconds >= PROBE_SECONDS and not _runs(self._probing.get(name)):
                known.probed_seconds = seconds
                self._probing[name] = asyncio.create_task(self._probe(name, is_member=name in members))

    async def _probe(self, name: str, *, is_member: bool) -> None:
        known, factory = self.known[name], self._experiment.config.model.factory
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await probe(self._clients[name], factory)
            self._note_bytes(found.carried_bytes)
            check_would(found, name, factory, is_member=is_member)
        except TimeoutError:
            self._note_absence(name, UnreachableError(f"it has not answered within {ANSWER_SECONDS:g} s"))
        except IsthmusError as failure:
            self._note_absence(name, failure)
        else:
            known.probed, known.absence, known.has_failed = found, "", False
            known.trips.append(found.round_trip_seconds)

    def _note_absence(self, name: str, failure: IsthmusError) -> None:
        known, reason = self.known[name], str(failure)
        if not isinstance(failure, UnreachableError) and known.absence != reason:
            _log.warning("a candidate is left out", trainer=name, reason=reason)
        elif not known.absence:
            _log.info("a candidate is out of reach", trainer=name, reason=reason)
        known.probed, known.absence, known.has_failed = None, reason, True
        known.trips.clear()

    def leave_out(self, name: str, seconds: float, reason: str) -> None:
        """Ask a trainer that refused a handover for none, for some time."""
        _log.warning("a candidate is left out", trainer=name, reason=reason)
        self.known[name].left_out_until = seconds + LEFT_OUT_SECONDS

    def measure(
        self, seconds: float, wanted: Sequence[tuple[str, float, int]], most_seconds: float | None = None
    ) -> None:
        """Measure the first of these trainers that is due, if no measurement is under way.

        wanted: name, seconds of a step by what is known, and the blocks on the device. One is due at first, after ten minutes,
        and when the seconds of a step have changed by a tenth. most_seconds: for opening a session there.
        """
        if _runs(self._measuring):
            return
        for name, step_seconds, cut in wanted:
            if is_due(self.known[name], seconds, step_seconds):
                self.known[name].measured_seconds, self.known[name].step_seconds_then = seconds, None
                self._measuring = asyncio.create_task(self._measure(name, seconds, cut, most_seconds))
                return

    async def _measure(self, name: str, seconds: float, cut: int, most_seconds: float | None) -> None:
        """Measure the link as far as the budget allows, and then the blocks from the cut on. What fails stays as it was."""
        known, config, trainer = self.known[name], self._experiment.config, self._trainers[name]
        if affordable(left := self._budget.left(seconds)):
            access = trainer_access(trainer, config.tls)
            found, carried = await measured_rates(config, trainer, access, left)
            self._budget.spend(carried)
            self._note_bytes(carried)
            known.rates = found.merged_over(known.rates)
        if cut < len(self._experiment.chain.blocks):
            try:
                factor, carried = await measured_factor(
                    self._experiment, self._clients[name], name, cut, self._profiled, most_seconds
                )
            except IsthmusError as failure:
                _log.debug("the time of blocks was not measured", trainer=name, reason=str(failure))
            else:
                known.factor = factor
                self._note_bytes(carried)
        _log.info(
            "candidate measured",
            trainer=name,
            uplink_bits_per_second=known.rates.uplink,
            downlink_bits_per_second=known.rates.downlink,
            factor=known.factor,
        )


def _runs(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()


def is_due(known: Known, seconds: float, step_seconds: float) -> bool:
    """Tell whether another measurement of a trainer is due. step_seconds: of a step with it, by what is known."""
    age = seconds - known.measured_seconds
    if age >= MEASURE_SECONDS:
        return True
    then = known.step_seconds_then
    if then is None:
        known.step_seconds_then = then = step_seconds
    return age >= SETTLED_SECONDS and abs(step_seconds - then) > CHANGED_PART * then
