"""The judge of a peer's reports: each is accepted before it counts, is shown or is passed on.

A report must be about the next step of its worker, which must have begun. Its figures must be possible for that worker
under the placement. A loss may also be NaN or infinite, because a divergence shows so.
"""

from enum import Enum, auto

from shared.bounds import MOST_CLOCK_NANOSECONDS, MOST_METRIC_STATE_BYTES, is_duration, is_rate
from shared.errors import ProtocolError
from shared.placement import Window
from shared.wire.isthmus.v1.link_pb2 import StepDone

MOST_REPORT_BYTES = 4096
"""The largest report of training: that of a worker with fifteen links takes a third of it."""


class Heard(Enum):
    """The use of a report that counts."""

    NEW = auto()
    """It is passed on."""
    REPEATED = auto()
    """Its worker has begun again, and has done a step once more of which all was told before."""
    SHOWN = auto()
    """It shows how far its peer is, and no more."""


class ReportsHeard:
    """The reports that one worker hears of the others. Used on the event loop."""

    def __init__(self, window: Window) -> None:
        """window: of this worker. It counts the reports that are passed on."""
        self._window = window
        self._shown = dict.fromkeys(window.plan.peers(window.worker), window.told)
        """First step that a peer has not shown to be done. Its reports may come by another peer, too."""
        plan = window.plan
        self._repeating = dict.fromkeys(plan.stateless, window.told)
        """First step that was not reported in any life of a worker, by each that may begin again."""
        self._heard = plan.reports_heard(window.worker)
        """By peer, the workers whose reports come from there."""
        self._most_bytes = MOST_REPORT_BYTES + (0 if plan.training else MOST_METRIC_STATE_BYTES)
        placement = plan.placement
        self._samples = {tile.worker: tile.rows.count for tile in placement.holders(placement.blocks - 1)}
        """The most samples whose loss each worker can compute; none where it is not named."""
        self._linked = {name: frozenset(plan.peers(name)) for names in self._heard.values() for name in names}
        self._most_in_a_row = plan.most_under_way
        """Largest number of times in a row that one segment can be computed before a step is done."""

    def speaks_for(self, peer: str, worker: str) -> bool:
        """Tell whether a peer brings the reports of this worker."""
        return worker in self._heard.get(peer, ())

    def take(self, done: StepDone, peer: str) -> Heard:
        """Count a report, and tell its use. Raises ProtocolError, and counts nothing, for one that cannot be."""
        passed_on = self.speaks_for(peer, done.worker)
        if not passed_on and done.worker != peer:
            raise ProtocolError(f"{peer!r} says what {done.worker[:40]!r} has done; others pass that on")
        expected = self._window.next_of(done.worker) if passed_on else self._shown[peer]
        begins_again = not self._window.plan.stateless.isdisjoint((peer, self._window.worker))
        if begins_again and done.step < expected:
            return Heard.SHOWN
        may_lack = begins_again and not passed_on and done.step <= self._window.latest + self._most_in_a_row
        if done.step != expected and not may_lack:
            raise ProtocolError(
                f"{peer!r} says that {done.worker!r} has done step {done.step}; of it, step {expected} is next"
            )
        if not self._window.may_be_done_elsewhere(done.step):
            raise ProtocolError(f"{peer!r} says that {done.worker!r} has done step {done.step}, which has not begun")
        if not passed_on:
            self._shown[peer] = done.step + 1
            return Heard.SHOWN
        self._check(done, peer)
        self._window.hear(done.worker, done.step)
        if done.step < self._repeating.get(done.worker, 0):
            return Heard.REPEATED
        if done.worker in self._repeating:
            self._repeating[done.worker] = done.step + 1
        return Heard.NEW

    def _check(self, done: StepDone, peer: str) -> None:
        """Refuse figures that the worker cannot have. Raises ProtocolError."""
        most, linked = self._samples.get(done.worker, 0), self._linked[done.worker]
        if done.ByteSize() > self._most_bytes:
            wrong = f"{done.ByteSize()} bytes; a report has {self._most_bytes} at most"
        elif done.samples > most:
            wrong = f"the loss of {done.samples} samples; it has {most} at most"
        elif done.correct > done.samples:
            wrong = f"{done.correct} samples that are right of {done.samples}"
        elif not is_duration(done.compute_seconds):
            wrong = f"{done.compute_seconds} seconds of computing"
        elif done.compute_start_nanoseconds > MOST_CLOCK_NANOSECONDS:
            wrong = f"a clock at {done.compute_start_nanoseconds} nanoseconds"
        elif len(done.rates) > len(linked) or not all(
            rate.to in linked and is_rate(rate.bits_per_second) and is_duration(rate.round_trip_seconds)
            for rate in done.rates
        ):
            wrong = "figures of links that it has not, or that no link has"
        elif len(done.order) % 2 or not all(1 <= count <= self._most_in_a_row for count in done.order[1::2]):
            wrong = "an order in which nobody computes"
        else:
            return
        raise ProtocolError(f"{peer!r} reports of step {done.step} at {done.worker!r}: {wrong}")
