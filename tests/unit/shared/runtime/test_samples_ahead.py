"""Samples that leave before their step begins: which do, how far before, and what they save."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.errors import ProtocolError
from shared.events.worker import Received, StepComputed
from shared.placement import (
    ArrivalJudge,
    BlockFacts,
    Cargo,
    ModelFacts,
    Placement,
    Rows,
    Source,
    StepPlan,
    Tile,
    Window,
)
from shared.runtime import placement_executor
from shared.runtime.order import segments_of
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.support.examples import examples
from tests.support.linked import LinkedSession
from tests.support.placed import MODEL_FACTS, batch_of, built, chain_of, in_process, recipe, state_of
from tests.support.placements import valid_placements
from tests.support.plain import assert_same_bits
from tests.support.virtual import Wire, run_virtually
from tests.unit.shared.runtime.test_begin_again import SAMPLES, TIERS, WHOLE

pytestmark = pytest.mark.usefixtures("one_thread")
AHEAD, STEPS, DELAY_SECONDS = 2, 6, 1.0


def facts(frozen: int = 0, ahead: int = AHEAD) -> ModelFacts:
    blocks = tuple(BlockFacts(f"b{index}", trainable=index >= frozen) for index in range(TIERS.blocks))
    return ModelFacts(blocks, samples_ahead=ahead)


def placed(*tiles: tuple[str, int, int]) -> Placement:
    return replace(TIERS, tiles=tuple(Tile(*each, WHOLE) for each in tiles), owners={})


CUT = placed(("edge", 0, 2), ("near", 2, 4))
INVERTED = placed(("near", 0, 2), ("edge", 2, 4))
BEHIND = placed(("near", 0, 2), ("far", 2, 4))
ALONE = placed(("edge", 0, 4))


@pytest.mark.parametrize(
    ("placement", "frozen", "ahead"),
    [
        (TIERS, 0, {("near", Cargo.LABEL), ("near", Cargo.FEATURE), ("far", Cargo.FEATURE)}),
        (CUT, 0, {("near", Cargo.LABEL)}),
        (INVERTED, 0, {("near", Cargo.FEATURE)}),
        (BEHIND, 0, {("near", Cargo.FEATURE), ("far", Cargo.LABEL)}),
        (BEHIND, 2, {("far", Cargo.LABEL)}),
        (ALONE, 0, set()),
    ],
)
def test_labels_go_ahead_and_samples_where_they_begin_no_step_that_others_are_not_ready_for(placement, frozen, ahead):
    """Refused for a near worker that learns nothing: it would forward one batch after the other and wait for nobody."""
    plan = StepPlan(placement, facts(frozen))
    assert {(one.receiver, one.cargo) for one in plan.sent_ahead} == ahead
    assert {one.sender for one in plan.sent_ahead} <= {"edge"}
    assert plan.runs_ahead == (plan.samples_ahead if any(cargo is Cargo.FEATURE for _, cargo in ahead) else 0)


@pytest.mark.parametrize(("staleness", "ahead"), [(0, AHEAD), (3, AHEAD)])
def test_they_go_as_far_beyond_k_as_is_said(staleness, ahead):
    assert StepPlan(replace(TIERS, staleness=staleness), facts()).samples_ahead == ahead
    assert not StepPlan(replace(TIERS, staleness=staleness), facts(ahead=0)).sent_ahead


def test_none_go_ahead_where_k_bounds_nothing_or_nothing_is_trained():
    all_cloud = placed(("near", 0, 4))
    assert StepPlan(all_cloud, facts()).samples_ahead == 0, "more steps than these may have begun anyhow"
    assert not StepPlan(TIERS, facts(), training=False).sent_ahead


@pytest.mark.parametrize("staleness", range(3))
def test_a_worker_takes_as_many_as_were_agreed_and_not_one_more(staleness):
    plan = StepPlan(replace(TIERS, staleness=staleness), facts())
    window = Window(plan, "far")
    judge = ArrivalJudge(window)
    coming = {(one.sender, one.cargo): one for sender in ("edge", "near") for one in plan.between(sender, "far")}
    samples, weights = coming["edge", Cargo.FEATURE], coming["near", Cargo.WEIGHTS]
    for step in range(staleness + AHEAD + 1):
        judge.accept(samples, step, SAMPLES, plan.ahead_of(samples))
    latest = staleness + AHEAD
    with pytest.raises(
        ProtocolError, match=f"samples come 2 steps before, and step 0 .* so step {latest} is the latest"
    ):
        judge.accept(samples, latest + 1, SAMPLES, plan.ahead_of(samples))
    for step in range(staleness + 1):
        judge.accept(weights, step, SAMPLES)
    with pytest.raises(ProtocolError, match=f"so step {staleness} is the latest"):
        judge.accept(weights, staleness + 1, SAMPLES)


def test_samples_are_taken_before_their_step_begins_and_no_earlier_than_that():
    plan = StepPlan(TIERS, facts())
    window = Window(plan, "edge")
    for step in range(AHEAD + 1):
        assert step < window.admitted + plan.samples_ahead
        window.feed(step)
    assert window.admitted + plan.samples_ahead == AHEAD + 1
    window.begin(0)
    assert window.admitted == 1
    window.answer(0)
    window.clear(0)
    assert window.admitted == 2


class Noted:
    """The order of what happens at the far worker, and how stale its steps are said to be."""

    def __init__(self, session: LinkedSession) -> None:
        self.order: list[tuple[str, int]] = []
        self.staleness: set[int | None] = set()
        session.events["far"].subscribe(Received, self._note_samples)
        for events in session.events.values():
            events.subscribe(StepComputed, lambda event: self.staleness.add(event.staleness))
        session.events["far"].subscribe(StepComputed, lambda event: self.order.append(("done", event.step)))

    def _note_samples(self, event: Received) -> None:
        if event.tensor.key.role == Role.ROLE_FEATURE:
            self.order.append(("samples", event.tensor.key.step))


def seen(ahead: int, staleness: int = 0) -> tuple[Noted, float]:
    """Train over links that take a second each way; returns the seconds of all steps, too."""

    async def main() -> tuple[Noted, float]:
        session = LinkedSession(
            built("dropping"),
            replace(TIERS, staleness=staleness),
            recipe("sgd", samples_ahead=ahead),
            wires=lambda _sender, _receiver: Wire(1e9, DELAY_SECONDS),
        )
        noted, begun = Noted(session), asyncio.get_running_loop().time()
        await session.train([batch_of(step, SAMPLES) for step in range(STEPS)])
        return noted, max(session.done_seconds) - begun

    return run_virtually(main)


def test_over_a_long_way_the_next_samples_are_there_when_a_step_ends():
    (without, seconds_without), (ahead, seconds) = seen(0), seen(AHEAD)
    for step in range(STEPS - 1):
        assert without.order.index(("samples", step + 1)) > without.order.index(("done", step))
    for step in range(STEPS - AHEAD):
        assert ahead.order.index(("samples", step + AHEAD)) < ahead.order.index(("done", step))
    assert seconds <= seconds_without - (STEPS - 1) * DELAY_SECONDS, "a step waits for the samples no more"


@pytest.mark.parametrize("staleness", range(3))
def test_samples_ahead_make_no_step_stale(staleness):
    noted, _ = seen(AHEAD, staleness)
    assert noted.staleness <= {None, *range(staleness + 1)}


def test_samples_that_enter_at_several_workers_go_ahead_from_each():
    sources = (Source("edge", Rows(0, 3)), Source("near", Rows(3, SAMPLES)))
    plan = StepPlan(replace(TIERS, sources=sources), facts())
    assert {one.sender for one in plan.sent_ahead} == {"edge", "near"}


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("placement", [TIERS, CUT, INVERTED])
def test_a_worker_whose_results_nobody_has_taken_waits(monkeypatch, placement, most):
    """Samples that leave ahead are results, too: a worker that computed on with a full queue would end its run."""

    def trained() -> dict[str, Tensor]:
        async def main() -> LinkedSession:
            session = LinkedSession(
                built("dropping"), placement, recipe("adam", samples_ahead=AHEAD), seconds=lambda: 0.0
            )
            await session.train([batch_of(step, SAMPLES) for step in range(STEPS)])
            return session

        return state_of(run_virtually(main).chains, placement)

    expected = trained()
    monkeypatch.setattr(placement_executor, "MOST_UNTAKEN", most)
    assert_same_bits(expected, trained())


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    valid_placements(MODEL_FACTS["dropping"], st.just(SAMPLES)),
    st.lists(st.integers(0, 60), max_size=4),
    st.integers(0, 1 << 30),
)
@example(
    Placement(
        *(0, 4, SAMPLES, ("edge", "near", "far")),
        (Tile("near", 0, 4, Rows(0, 1)), Tile("far", 0, 4, Rows(1, SAMPLES))),
        (Source("near", Rows(0, 1)), Source("far", Rows(1, SAMPLES))),
        {0: "far", 1: "edge", 2: "near", 3: "near"},
        None,
        1,
    ),
    [],
    58802,
)  # each of two workers with samples begins by itself
def test_the_orders_that_workers_report_can_be_followed_to_the_same_bits(placement, losses, seed):
    told, batches = recipe("adam", samples_ahead=AHEAD), [batch_of(step, SAMPLES) for step in range(STEPS)]
    dice = random.Random(seed)
    longest = dice.choice([0.001, 0.05])

    async def main() -> LinkedSession:
        session = LinkedSession(
            built("dropping"), placement, told, seconds=lambda: dice.uniform(0, longest), losses=losses
        )
        await session.train(batches)
        return session

    session = run_virtually(main)
    chains = {worker: chain_of(built("dropping")) for worker in placement.workers}
    replayed = in_process(chains, placement, told)
    told_orders = {(done.worker, step): list(done.order) for step, dones in session.done.items() for done in dones}
    orders = {
        worker: [one for step in range(STEPS) for one in segments_of(told_orders[worker, step], count)]
        for worker, count in replayed.working.items()
    }
    replayed.follow(orders, 0, iter(batches))
    assert_same_bits(state_of(chains, placement), state_of(session.chains, placement))
