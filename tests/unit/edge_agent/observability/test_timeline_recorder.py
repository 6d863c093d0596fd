"""The contents of a time line: times of othe it.r machines are converted to the device's clock, and none is later than
the report of"""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.observability.lanes import TimelineLane, way
from edge_agent.observability.timeline import PARTS_TOGETHER, Timeline, load
from edge_agent.observability.timeline_recorder import ReportedClock, TimelineRecorder
from edge_agent.training.events import LinkDown, LinkUp, Placed
from shared.events import Events
from shared.events.worker import Computed, Delivered, LoadEncoded, Received, WorkerDone
from shared.placement import AGENT, Deployment, Link, Placement, Rows, Source, Tile
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.transport.stream.link_estimate import PeerClock
from shared.wire.isthmus.v1.link_pb2 import LinkRate, StepDone
from shared.wire.isthmus.v1.tensor_pb2 import Role, TensorHeader

WHOLE = Rows(0, 8)
CHAIN = Placement(
    0,
    3,
    8,
    (AGENT, "near", "far"),
    tuple(Tile(worker, block, block + 1, WHOLE) for block, worker in enumerate((AGENT, "near", "far"))),
    (Source(AGENT, WHOLE),),
)
LINKS = [Link(AGENT, "near"), Link("near", "far")]
AHEAD = 5000.0
"""Seconds by which another machine's clock is ahead of this one's."""
BITS_PER_SECOND = 8000.0
ROLES = {
    "feature": Role.ROLE_FEATURE,
    "error gradient": Role.ROLE_ERROR_GRADIENT,
    "label": Role.ROLE_LABEL,
    "weights": Role.ROLE_WEIGHTS,
    "part": Role.ROLE_WEIGHT_GRADIENT,
}


def nanoseconds(seconds):
    return round(seconds * 1e9)


def tensor(role, step=0, sent=0.0, count=0):
    return WireTensor(TensorKey(step, role), 0, TensorHeader(), memoryview(bytes(count)), nanoseconds(sent))


def stream(ahead=AHEAD, round_trip=0.02):
    """Build the part of a stream that a recorder reads. The clock of its other end is known."""
    clock = PeerClock()
    clock.observe(1.0, 1.0 + round_trip, nanoseconds(1.0 + round_trip / 2 + ahead))
    link = SimpleNamespace(
        rate=SimpleNamespace(bits_per_second=BITS_PER_SECOND), round_trip=SimpleNamespace(seconds=round_trip)
    )
    return SimpleNamespace(peer_clock=clock, estimate=link)


class Recording:
    """A recorder on the test's clock, and its records."""

    def __init__(self, monkeypatch, placement=CHAIN, links=LINKS):
        self._monkeypatch = monkeypatch
        self._timeline = Timeline()
        self._events = Events()
        TimelineRecorder(self._timeline, self._events)
        self.emit(Placed(placement, links, Deployment()), Computed(0, 0, "forward", 0.0, 0.001))

    def emit(self, *events):
        for event in events:
            self._events.emit(event)

    def at(self, seconds, *events):
        """Emit events at a moment."""
        self._monkeypatch.setattr(time, "monotonic", lambda: seconds)
        self.emit(*events)

    def written(self, folder):
        self.emit(LinkDown("near"))
        self._timeline.write(folder / "trace.json")
        return load(folder / "trace.json")

    def spans(self, folder, lane):
        return [span for span in self.written(folder).spans if span.lane == lane]


FAR = TimelineLane("cloud", "far", by_reports=True)


def done(worker, step, began, seconds):
    """Report a step as a worker whose clock is ahead. began: by the device's clock."""
    return StepDone(
        worker=worker, step=step, compute_seconds=seconds, compute_start_nanoseconds=nanoseconds(began + AHEAD)
    )


def test_a_far_worker_is_drawn_as_long_as_it_reports_and_ends_no_later_than_its_report_came(monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    delays = [0.05, 0.01, 0.2, 0.03]
    for step, delay in enumerate(delays):
        recording.at(10.3 + step + delay, WorkerDone(done("far", step, 10.0 + step, 0.3)))
    spans = recording.spans(tmp_path, FAR)
    assert [span.end - span.start for span in spans] == pytest.approx([0.3] * len(delays))
    late = [span.end - (10.3 + step) for step, span in enumerate(spans)]
    assert late == pytest.approx([0.05, 0.01, 0.01, 0.01], abs=1e-3), "what came fastest says how late the others are"
    assert all(behind <= delay + 1e-6 for behind, delay in zip(late, delays, strict=True))


@given(st.lists(st.tuples(st.floats(0.001, 5.0), st.floats(0.0, 3.0)), min_size=1, max_size=20), st.floats(-1e5, 1e5))
def test_no_tensor_is_sent_later_than_it_arrived(pauses_and_delays, ahead):
    clock, sent, arrived = ReportedClock(), 1e5, 1e5
    for pause, delay in pauses_and_delays:
        sent += pause
        arrived = max(arrived, sent + delay)
        clock.observe(nanoseconds(sent + ahead), arrived)
        assert sent - 1e-5 <= clock.to_local(nanoseconds(sent + ahead)) <= arrived + 1e-5


def test_a_trainer_that_was_started_again_has_another_clock(monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    recording.at(10.5, WorkerDone(done("far", 0, 10.0, 0.3)))
    recording.emit(Placed(CHAIN, LINKS, Deployment()))
    again = StepDone(worker="far", step=1, compute_seconds=0.3, compute_start_nanoseconds=nanoseconds(9000.0))
    recording.at(20.5, WorkerDone(again))
    assert recording.spans(tmp_path, FAR)[-1].end == pytest.approx(20.5)


def test_a_trainer_is_drawn_by_its_clock_where_the_device_knows_it(monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    delivered = Delivered("near", tensor(Role.ROLE_FEATURE), 0.02, nanoseconds(10.0 + AHEAD))
    recording.at(10.0, LinkUp("near", stream()), delivered)
    recording.at(11.0, WorkerDone(done("near", 0, 10.1, 0.3)))
    (span,) = recording.spans(tmp_path, TimelineLane("cloud", "near"))
    assert (span.start, span.end) == pytest.approx((10.1, 10.4))
    assert span.what == PARTS_TOGETHER, "it waits for the far end between its forward and its backward"


def test_a_trainer_that_never_acknowledged_a_tensor_is_drawn_by_what_came_from_it(monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    recording.at(10.2, Received("near", tensor(Role.ROLE_FEATURE, 0, 10.1 + AHEAD), 0))
    recording.at(10.7, WorkerDone(done("near", 0, 10.0, 0.3)))
    (feature,), (work,) = (
        recording.spans(tmp_path, lane) for lane in (way("near", AGENT), TimelineLane("cloud", "near"))
    )
    assert feature.end == pytest.approx(10.2)
    assert 10.0 <= work.start < work.end <= 10.7


@pytest.mark.parametrize("held", [0.0, 0.15])
def test_a_tensor_leaves_when_it_left_however_long_its_acknowledgement_has_waited(held, monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    left, arrived, way_back = 10.0, 10.3, 0.01
    seconds = arrived + way_back - left
    delivered = Delivered("near", tensor(Role.ROLE_FEATURE), seconds, nanoseconds(arrived + AHEAD))
    recording.at(arrived + way_back + held, LinkUp("near", stream()), delivered)
    (span,) = recording.spans(tmp_path, way(AGENT, "near"))
    assert (span.start, span.end) == pytest.approx((left, arrived), abs=1e-5)


def test_one_acknowledgement_dates_its_last_tensor_and_the_link_rate_dates_the_others(monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    recording.at(13.01, LinkUp("near", stream()))
    for step in range(3):
        label = tensor(Role.ROLE_LABEL, step, count=100)
        recording.emit(Delivered("near", label, 13.01 - (10.0 + step), nanoseconds(13.0 + AHEAD)))
    found = [moment for span in recording.spans(tmp_path, way(AGENT, "near")) for moment in (span.start, span.end)]
    assert found == pytest.approx([10.0, 10.11, 11.0, 11.11, 12.0, 13.0], abs=1e-5)


def test_nothing_leaves_before_it_is_encoded(monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    recording.emit(LinkUp("near", stream()), LoadEncoded(0, 10.0, 10.1))
    delivered = Delivered("near", tensor(Role.ROLE_FEATURE), 0.8, nanoseconds(10.3 + AHEAD))
    recording.at(10.9, delivered)  # The acknowledgement took longer than any before.
    (span,) = recording.spans(tmp_path, way(AGENT, "near"))
    assert (span.start, span.end) == pytest.approx((10.1, 10.3), abs=1e-5)


@pytest.mark.parametrize("name", ROLES)
def test_tensors_are_called_what_they_are_both_ways(name, monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    delivered = Delivered("near", tensor(ROLES[name], 3), 0.1, nanoseconds(10.1 + AHEAD))
    recording.at(10.2, LinkUp("near", stream()), delivered)
    recording.at(10.4, Received("near", tensor(ROLES[name], 3, 10.3 + AHEAD), 0))
    for lane in (way(AGENT, "near"), way("near", AGENT)):
        (span,) = recording.spans(tmp_path, lane)
        assert (span.what, span.step) == (name, 3)


def test_of_a_link_between_trainers_its_rates_are_written_and_no_times(monkeypatch, tmp_path):
    recording = Recording(monkeypatch)
    report = done("near", 0, 10.0, 0.1)
    report.rates.extend([LinkRate(to=AGENT, bits_per_second=1e6), LinkRate(to="far", bits_per_second=2e6)])
    recording.at(10.5, WorkerDone(report))
    trace = recording.written(tmp_path)
    assert [(news.lane, news.bits_per_second) for news in trace.rates] == [(way("near", "far"), 2e6)]
    assert {span.lane for span in trace.spans} == {TimelineLane("edge", AGENT), TimelineLane("cloud", "near")}
