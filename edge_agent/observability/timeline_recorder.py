"""A recorder of the time line: the device's own work, and the reports of trainers with their clocks."""

import time
from typing import Any, NamedTuple

from edge_agent.observability.lanes import TimelineLane, lanes_of, trainer_lane, way
from edge_agent.observability.timeline import PARTS_TOGETHER, Timeline
from edge_agent.training.events import LinkDown, LinkUp, Placed
from shared.events import Events
from shared.events.worker import Computed, Delivered, LoadEncoded, Received, WorkerDone
from shared.placement import AGENT, Placement, held_blocks, loss_rows, stages
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import TensorKey, role_name
from shared.transport.stream.link_estimate import DRIFT, PeerClock
from shared.wire.isthmus.v1.tensor_pb2 import Role


class ReportedClock:
    """A clock known by one bound: nothing arrives before it was sent. The fastest message bounds best.

    So it puts a moment too late by that way at least, and never puts what was sent after it came. The bound loosens by
    what two clocks may drift.
    """

    def __init__(self) -> None:
        self._lead_seconds = float("inf")
        """Our clock minus the worker's, at most."""
        self._observed_seconds = 0.0

    def observe(self, sent_nanoseconds: int, arrived_seconds: float) -> None:
        """Take note that a message, sent at this moment of the worker's clock or later, has come at this one of
        time.monotonic."""
        loosened = self._lead_seconds + DRIFT * (arrived_seconds - self._observed_seconds)
        self._lead_seconds = min(loosened, arrived_seconds - sent_nanoseconds / 1e9)
        self._observed_seconds = arrived_seconds

    def to_local(self, worker_nanoseconds: int) -> float:
        """A moment of the worker's clock as time.monotonic would have shown it here, once something has come."""
        return worker_nanoseconds / 1e9 + self._lead_seconds


class _Sent(NamedTuple):
    """A tensor that a peer has acknowledged; times are of time.monotonic."""

    key: TensorKey
    began: float
    soonest: float
    """Time of its arrival if nothing was in its way."""
    arrived: float
    """Time at which all was there that the acknowledgement covers."""
    acknowledged_nanoseconds: int
    """The same moment by the peer's clock, which is of this acknowledgement alone."""


class TimelineRecorder:
    """Reads the events of a run that take time. Used on the event loop."""

    def __init__(self, timeline: Timeline, events: Events) -> None:
        self._timeline = timeline
        self._trainers: dict[str, tuple[TimelineLane, str]] = {}
        """Lane of each trainer of the placement, and its work in a step."""
        self._reported: dict[str, ReportedClock] = {}
        self._up: dict[str, Duplex[Any, Any]] = {}
        self._streams: dict[str, Duplex[Any, Any]] = {}
        """Streams on which a tensor was acknowledged, so that the clock at the other end is known from both ways."""
        self._newest: dict[str, _Sent] = {}
        """Newest acknowledgement of each peer, drawn when its coverage is known."""
        self._encoded: dict[int, float] = {}
        """Time at which the first load of a step was encoded, of the steps that the device is at."""
        events.subscribe(Placed, self._place)
        events.subscribe(LinkUp, self._note_link)
        events.subscribe(LinkDown, self._forget_link)
        events.subscribe(Computed, self._draw_computed)
        events.subscribe(LoadEncoded, self._draw_encoded)
        events.subscribe(Delivered, self._note_delivered)
        events.subscribe(Received, self._draw_received)
        events.subscribe(WorkerDone, self._draw_worker)

    def _place(self, event: Placed) -> None:
        """Trainers may have been started again, so nothing is known of their clocks."""
        placement, links = event.placement, event.links
        self._timeline.show(lanes_of(placement, links))
        trainers = [name for name in placement.workers if name != AGENT]
        self._trainers = {name: (trainer_lane(name, links), _work(placement, name)) for name in trainers}
        self._reported = {name: ReportedClock() for name in trainers}

    def _note_link(self, event: LinkUp) -> None:
        self._up[event.peer] = event.stream

    def _forget_link(self, event: LinkDown) -> None:
        self._up.pop(event.peer, None)
        self._streams.pop(event.peer, None)
        if (sent := self._newest.pop(event.peer, None)) is not None:
            self._draw(event.peer, sent)

    def _draw_computed(self, event: Computed) -> None:
        """Draw a segment; one that only takes in the weights of shared blocks has no name of its own."""
        lane = TimelineLane("edge", AGENT)
        self._timeline.add(lane, event.what or "weights", event.step, event.start_seconds, event.end_seconds)

    def _draw_encoded(self, event: LoadEncoded) -> None:
        self._encoded.setdefault(event.step, event.end_seconds)
        self._timeline.add(TimelineLane("codec", AGENT), "encode", event.step, event.start_seconds, event.end_seconds)

    def _note_delivered(self, event: Delivered) -> None:
        """The last of all tensors that a peer acknowledges at once came at that moment of its clock.

        The seconds are from the first byte to then, and the way back. The acknowledgement may have waited there since, so the
        length of the way back is taken from the round trip. Nothing leaves before it is encoded.
        """
        peer, tensor, receiver_nanoseconds = event.peer, event.tensor, event.receiver_nanoseconds
        if (stream := self._up.get(peer)) is None:
            return
        self._streams[peer] = stream
        arrived = stream.peer_clock.to_local(receiver_nanoseconds)
        one_way = (stream.estimate.round_trip.seconds or 0.0) / 2
        encoded = self._encoded.get(tensor.key.step, float("-inf"))
        began = min(max(arrived - max(event.seconds - one_way, 0.0), encoded), arrived)
        rate = stream.estimate.rate.bits_per_second or float("inf")  # On a link of unknown rate, tensors are small.
        soonest = min(began + one_way + len(tensor.payload) * 8 / rate, arrived)
        if (before := self._newest.get(peer)) is not None:
            self._draw(peer, before, came_before_others=before.acknowledged_nanoseconds == receiver_nanoseconds)
        self._newest[peer] = _Sent(tensor.key, began, soonest, arrived, receiver_nanoseconds)

    def _draw(self, peer: str, sent: _Sent, *, came_before_others: bool = False) -> None:
        end = sent.soonest if came_before_others else sent.arrived
        self._timeline.add(way(AGENT, peer), tensor_name(sent.key), sent.key.step, sent.began, end)

    def _draw_received(self, event: Received) -> None:
        peer, tensor, arrived = event.peer, event.tensor, time.monotonic()
        self._reported[peer].observe(tensor.sender_nanoseconds, arrived)
        sent = self._clock(peer).to_local(tensor.sender_nanoseconds)
        self._timeline.add(way(peer, AGENT), tensor_name(tensor.key), tensor.key.step, sent, arrived)

    def _draw_worker(self, event: WorkerDone) -> None:
        """The report of a worker says when it computed, by its clock, and how fast its links are."""
        done = event.report
        if done.worker == AGENT:
            self._encoded = {step: end for step, end in self._encoded.items() if step > done.step}
            return
        now, (lane, work) = time.monotonic(), self._trainers[done.worker]
        for rate in done.rates:
            if rate.to != AGENT:
                self._timeline.add_rate(way(done.worker, rate.to), now, rate.bits_per_second)
        if start := done.compute_start_nanoseconds:
            self._reported[done.worker].observe(start + round(done.compute_seconds * 1e9), now)
            began = self._clock(done.worker).to_local(start)
            self._timeline.add(lane, work, done.step, began, began + done.compute_seconds)

    def _clock(self, trainer: str) -> PeerClock | ReportedClock:
        stream = self._streams.get(trainer)
        return self._reported[trainer] if stream is None else stream.peer_clock


def tensor_name(key: TensorKey) -> str:
    """Return the title of a tensor in a time line: a part is one worker's of the gradient of a shared block."""
    return "part" if key.role == Role.ROLE_WEIGHT_GRADIENT else role_name(key.role)


def _work(placement: Placement, name: str) -> str:
    """Name the work of a trainer in a step. It works without a pause where it computes the loss and shares no block."""
    tiles = stages(placement, name)
    shares = any(len(placement.holders(block)) > 1 for block in held_blocks(placement, name))
    in_one_go = len(tiles) == 1 and loss_rows(placement, name) is not None and not shares
    return "forward, backward" if in_one_go else PARTS_TOGETHER
