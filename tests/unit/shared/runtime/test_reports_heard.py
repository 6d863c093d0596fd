"""A peer's reports of finished steps: each counts once it is possible, whichever peer sends it."""

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bounds import MOST_BITS_PER_SECOND, MOST_CLOCK_NANOSECONDS, MOST_METRIC_STATE_BYTES, MOST_SECONDS
from shared.errors import ProtocolError
from shared.events import Event
from shared.events.worker import WorkerDone, WorkerRepeated
from shared.placement import AGENT, Rows, Source, StepPlan, Window, parse_placement
from shared.runtime.reports import MOST_REPORT_BYTES, ReportRelay
from shared.wire.isthmus.v1.link_pb2 import LinkRate, StepDone
from tests.support.placed import MODEL_FACTS

BATCH, BEGUN = 8, 3
FACTS = MODEL_FACTS["dropping"]
BLOCKS = len(FACTS.blocks)
MODEL_FACTS_OF_A_STILL_END = replace(
    FACTS, blocks=(*FACTS.blocks[:-1], replace(FACTS.blocks[-1], trainable=False, has_buffers=False))
)
"""Facts of a model whose last block does not change."""


def placed(*parts):
    tiles = [{"worker": worker, "blocks": [first, stop]} for worker, first, stop in parts]
    document = {"schema": "isthmus.placement/v1", "workers": [AGENT, "near", "far"], "tiles": tiles, "staleness": 2}
    return parse_placement(document, "here", BLOCKS, BATCH)


CHAIN = placed((AGENT, 0, 1), ("near", 1, 2), ("far", 2, BLOCKS))
"""A chain in which labels go from the edge to the worker with the loss, so each reports by a link of its own."""
THERE_AND_BACK = placed(("near", 0, 1), ("far", 1, 2), ("near", 2, 3), (AGENT, 3, BLOCKS))
"""A placement in which the near worker passes on the far one's reports."""


class Hearing:
    """A worker that hears reports."""

    def __init__(self, window):
        self._events: list[Event] = []
        self._relay = ReportRelay(window, self._events.append, asyncio.Event())

    def hear(self, done, peer):
        """Return what is told of a report."""
        self._events.clear()
        self._relay.hear(done, peer)
        return self._events


def hearing(worker=AGENT, placement=THERE_AND_BACK, *, training=True):
    return Hearing(window_of(worker, placement, training=training))


def window_of(worker=AGENT, placement=THERE_AND_BACK, *, training=True):
    """The window of a worker at which steps before `BEGUN` have begun, where samples enter."""
    found = Window(StepPlan(placement, FACTS, training=training), worker)
    for step in range(BEGUN):
        found.begin(step)
    return found


def report(worker="far", step=0, **changes):
    rates = [LinkRate(to="near", bits_per_second=1e6)]
    return StepDone(**{"worker": worker, "step": step, "compute_seconds": 0.1, "rates": rates, **changes})


def loss(samples=BATCH, value=1.0, correct=None):
    return {"samples": samples, "loss": value} | ({} if correct is None else {"correct": correct})


RIGHT = [
    {},
    loss(),
    loss(0, 0.0),
    loss(value=math.nan),
    loss(value=math.inf),
    loss(correct=0),
    loss(correct=BATCH),
    {"compute_seconds": 0.0},
    {"compute_seconds": MOST_SECONDS},
    {"compute_start_nanoseconds": MOST_CLOCK_NANOSECONDS},
    {"rates": []},
    {"rates": [LinkRate(to="near", bits_per_second=MOST_BITS_PER_SECOND)]},
    {"order": [0, 1, 1, 1]},
    {"no_gradient": True},
]
WRONG = [
    loss(BATCH + 1),
    loss(2**32 - 1),
    loss(correct=BATCH + 1),
    {"correct": 1},
    *({"compute_seconds": seconds} for seconds in (math.nan, math.inf, -math.inf, -1e-9, MOST_SECONDS * 1.01)),
    {"compute_start_nanoseconds": MOST_CLOCK_NANOSECONDS + 1},
    *(
        {"rates": [LinkRate(to="near", bits_per_second=rate)]}
        for rate in (math.nan, math.inf, -1.0, 0.0, MOST_BITS_PER_SECOND * 1.01)
    ),
    *(
        {"rates": [LinkRate(to="near", bits_per_second=1.0, round_trip_seconds=seconds)]}
        for seconds in (math.nan, math.inf, -1e-9, MOST_SECONDS * 1.01)
    ),
    *({"rates": [LinkRate(to=to, bits_per_second=1.0)]} for to in ("", "nobody", "far", AGENT, "x" * 100_000)),
    {"rates": [LinkRate(to="near", bits_per_second=1.0)] * 2},
    *({"order": order} for order in ([0], [0, 0], [0, 2**31], [1, 1, 0], [0, 1] * 3000)),
]


@pytest.mark.parametrize("figures", RIGHT)
def test_figures_that_a_worker_can_have_count(figures):
    heard = hearing(placement=CHAIN)
    assert heard.hear(done := report(**figures), "far") == [WorkerDone(done)]
    assert heard.hear(done := report(step=1), "far") == [WorkerDone(done)]


def test_a_worker_that_computes_no_loss_reports_none():
    with pytest.raises(ProtocolError, match="the loss of 8 samples; it has 0 at most"):
        hearing().hear(report(**loss()), "near")


@pytest.mark.parametrize("figures", WRONG)
@pytest.mark.parametrize("worker", [AGENT, "near"])
def test_figures_that_it_cannot_have_are_refused_on_every_worker_and_count_nothing(worker, figures):
    heard, peer = hearing(worker), "near" if worker == AGENT else "far"
    with pytest.raises(ProtocolError, match=rf"^'{peer}' reports of step 0 at 'far': ") as refused:
        heard.hear(report(**figures), peer)
    assert len(str(refused.value)) < 200
    assert heard.hear(done := report(), peer) == [WorkerDone(done)], "the step is still the next"


def test_a_report_with_large_unknown_fields_is_refused():
    unknown = StepDone.FromString(report().SerializeToString() + b"\xa2\x06\xff\x7f" + bytes(0x3FFF))
    assert unknown.ByteSize() > MOST_REPORT_BYTES
    with pytest.raises(ProtocolError, match="a report has 4096 at most"):
        hearing().hear(unknown, "near")


def test_the_states_of_metrics_have_room_in_an_evaluation_alone():
    most = {"metric_states": [bytes(MOST_METRIC_STATE_BYTES)]}
    assert hearing(placement=CHAIN, training=False).hear(done := report(**most), "far") == [WorkerDone(done)]
    with pytest.raises(ProtocolError, match="a report has 4096 at most"):
        hearing().hear(report(**most), "near")
    more = {"metric_states": [bytes(MOST_METRIC_STATE_BYTES + MOST_REPORT_BYTES)]}
    with pytest.raises(ProtocolError, match="a report has 36864 at most"):
        hearing(placement=CHAIN, training=False).hear(report(**more), "far")


@given(st.lists(st.tuples(st.sampled_from(["near", "far"]), st.integers(0, 6)), max_size=30))
def test_each_worker_ends_its_steps_in_order_and_none_that_has_not_begun(said):
    window, next_steps = window_of(), {"near": 0, "far": 0}
    heard = Hearing(window)
    for worker, step in said:
        may_be = step == next_steps[worker] and step < BEGUN
        if may_be:
            assert heard.hear(done := report(worker, step, rates=[]), "near") == [WorkerDone(done)]
            next_steps[worker] += 1
        else:
            with pytest.raises(ProtocolError, match=f"{worker!r} has done step {step}"):
                heard.hear(report(worker, step, rates=[]), "near")
        assert {name: window.next_of(name) for name in next_steps} == next_steps


def test_a_worker_that_passes_nothing_on_reports_only_its_own_progress():
    heard = hearing("far")
    assert heard.hear(report("near", rates=[]), "near") == []
    for wrong in (report("near", 0), report("near", 2**63), report(AGENT, 0), report("x" * 100_000, 0)):
        with pytest.raises(ProtocolError) as refused:
            heard.hear(wrong, "near")
        assert len(str(refused.value)) < 200


def test_a_worker_that_has_begun_again_repeats_what_was_told_before():
    plan = StepPlan(placed((AGENT, 0, BLOCKS - 1), ("near", BLOCKS - 1, BLOCKS)), MODEL_FACTS_OF_A_STILL_END)
    assert "near" in plan.stateless
    window = Window(plan, AGENT)
    heard = Hearing(window)
    for step in range(BEGUN):
        window.begin(step)
        assert heard.hear(done := report("near", step, rates=[]), "near") == [WorkerDone(done)]
    window.unhear("near", 0)
    assert window.settled == 0
    for step in range(BEGUN):
        assert heard.hear(report("near", step, rates=[]), "near") == [WorkerRepeated("near", step)]
    window.begin(BEGUN)
    assert heard.hear(done := report("near", BEGUN, rates=[]), "near") == [WorkerDone(done)]


def test_progress_that_a_peer_shows_and_another_passes_on_counts_once_on_each_way():
    at_home = placed((AGENT, 0, 1), (AGENT, 1, 2), ("near", 2, BLOCKS))
    elsewhere = replace(at_home, sources=(Source("far", Rows(0, BATCH)),))
    window = Window(StepPlan(elsewhere, FACTS, training=False), "far")
    assert "near" in window.plan.peers("far")
    assert "near" in window.plan.reports_heard("far")[AGENT]
    window.begin(0)
    heard = Hearing(window)
    done = report("near", rates=[])
    for peer, told in (("near", []), (AGENT, [WorkerDone(done)])):
        assert heard.hear(done, peer) == told
        with pytest.raises(ProtocolError, match="of it, step 1 is next"):
            heard.hear(report("near", rates=[]), peer)
