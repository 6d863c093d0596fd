"""The judge of reports: what a peer may say that workers have done, agreed to before it counts, is shown or is passed on.

A report is of the step that is next of its worker, and that has begun; its figures are such as that worker can have under the
placement. A loss may be any number, because that it is none is how a divergence shows.
"""

from shared.bounds import MOST_CLOCK_NANOSECONDS, is_duration, is_rate
from shared.errors import ProtocolError
from shared.placement import StepPlan
from shared.wire.isthmus.v1.link_pb2 import StepDone

MOST_REPORT_BYTES = 4096
"""The largest report: that of a worker with fifteen links takes a third of it."""


class ReportsHeard:
    """The reports that one worker hears of the others. Used on the event loop, but for `oldest`."""

    def __init__(self, plan: StepPlan, worker: str, first_step: int) -> None:
        """first_step: the step that everybody begins with under this placement."""
        self._heard = plan.reports_heard(worker)
        """By peer, the workers whose reports come from there."""
        self._next_steps = {name: first_step for names in self._heard.values() for name in names}
        """Step that a worker does next, by worker whose reports come here."""
        self._first_step = first_step
        self._reached: dict[str, int] = {}
        """Step that a peer does next, by peer that shows only its own progress."""
        placement = plan.placement
        self._samples = {tile.worker: tile.rows.count for tile in placement.holders(placement.blocks - 1)}
        """The most samples whose loss each worker can compute; none where it is not named."""
        self._linked = {name: frozenset(plan.peers(name)) for name in self._next_steps}
        self._most_in_a_row = plan.ahead + 1
        """Largest number of times in a row that one segment can be computed before a step is done."""
        sources = {source.worker for source in placement.sources}
        self._lead = None if worker not in sources else 0 if len(sources) == 1 else plan.ahead + 1
        """Number of steps that another worker may have done and that have not begun here; None where none begins here."""

    def oldest(self, otherwise: int) -> int:
        """The first step that not every one of them has done; this one where none is heard. May be asked on another thread."""
        return min(self._next_steps.values(), default=otherwise)

    def speaks_for(self, peer: str, worker: str) -> bool:
        """Tell whether a peer brings the reports of this worker."""
        return worker in self._heard.get(peer, ())

    def take(self, done: StepDone, peer: str, begun_step: int) -> bool:
        """Count a report. begun_step: the step that begins here next.

        Returns whether it is one that is passed on; others show how far the peer is, and nothing else. Raises ProtocolError,
        and counts nothing, for one that cannot be.
        """
        counted = self._next_steps if (passed_on := self.speaks_for(peer, done.worker)) else self._reached
        if not passed_on and done.worker != peer:
            raise ProtocolError(f"{peer!r} says what {done.worker[:40]!r} has done; others pass that on")
        expected = counted.get(done.worker, self._first_step)
        if done.step != expected:
            raise ProtocolError(
                f"{peer!r} says that {done.worker!r} has done step {done.step}; of it, step {expected} is next"
            )
        if self._lead is not None and done.step >= begun_step + self._lead:
            raise ProtocolError(f"{peer!r} says that {done.worker!r} has done step {done.step}, which has not begun")
        if passed_on:
            self._check(done, peer)
        counted[done.worker] = done.step + 1
        return passed_on

    def _check(self, done: StepDone, peer: str) -> None:
        """Refuse figures that the worker cannot have. Raises ProtocolError."""
        most, linked = self._samples.get(done.worker, 0), self._linked[done.worker]
        if done.ByteSize() > MOST_REPORT_BYTES:
            wrong = f"{done.ByteSize()} bytes; a report has {MOST_REPORT_BYTES} at most"
        elif done.samples > most:
            wrong = f"the loss of {done.samples} samples; it has {most} at most"
        elif done.correct > done.samples:
            wrong = f"{done.correct} samples that are right of {done.samples}"
        elif not is_duration(done.compute_seconds):
            wrong = f"{done.compute_seconds} seconds of computing"
        elif done.compute_start_nanoseconds > MOST_CLOCK_NANOSECONDS:
            wrong = f"a clock at {done.compute_start_nanoseconds} nanoseconds"
        elif len(done.rates) > len(linked) or not all(
            rate.to in linked and is_rate(rate.bits_per_second) for rate in done.rates
        ):
            wrong = "rates of links that it has not, or that no link has"
        elif len(done.order) % 2 or not all(1 <= count <= self._most_in_a_row for count in done.order[1::2]):
            wrong = "an order in which nobody computes"
        else:
            return
        raise ProtocolError(f"{peer!r} reports of step {done.step} at {done.worker!r}: {wrong}")
