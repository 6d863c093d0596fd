"""The window of steps under way keeps its bounds whatever happens in whatever order, and counts each step once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.placement import AGENT, BlockFacts, ModelFacts, Placement, Rows, Source, StepPlan, Tile, Window
from shared.placement.window import MOST_UNREPORTED

WHOLE, FIRST = Rows(0, 8), 5
FACTS = ModelFacts(tuple(BlockFacts(f"b{index}", True, False) for index in range(3)))


def placed(*parts: tuple[str, int, int], sources: tuple[Source, ...] = (Source(AGENT, WHOLE),)) -> Placement:
    return Placement(0, 3, 8, (AGENT, "near", "far"), tuple(Tile(*part, WHOLE) for part in parts), sources)


CHAIN = placed((AGENT, 0, 1), ("near", 1, 2), ("far", 2, 3))
"""Gradients come back to the device from all."""
LOSS_AT_HOME = placed(("near", 0, 1), ("far", 1, 3))
"""The device computes nothing, so it learns from reports alone how far the others are."""
DIVIDED = replace(
    CHAIN,
    tiles=(Tile(AGENT, 0, 2, Rows(0, 4)), Tile("near", 0, 2, Rows(4, 8)), Tile("far", 2, 3, WHOLE)),
    sources=(Source(AGENT, Rows(0, 4)), Source("near", Rows(4, 8))),
)
"""Samples enter at two workers."""
PLACEMENTS = st.sampled_from([CHAIN, LOSS_AT_HOME, DIVIDED])
STALENESS = st.integers(0, 4)


def window_of(placement: Placement, staleness: int = 0, worker: str = AGENT) -> Window:
    return Window(StepPlan(replace(placement, staleness=staleness), FACTS), worker, FIRST)


class Steps:
    """Everything that may happen to a window, as moves by name."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.others = {name: FIRST for names in window.plan.reports_heard(window.worker).values() for name in names}

    @property
    def moves(self) -> list[str]:
        """The moves that are possible now."""
        window = self.window
        found = ["begin"] if window.begun < window.admitted else []
        found += ["answer"] if window.answered < window.begun else []
        found += ["clear"] if window.cleared < window.answered else []
        found += ["end"] if window.done < window.begun else []
        found += ["tell"] if window.told < window.done else []
        return found + [name for name, step in self.others.items() if step < window.begun]

    def do(self, move: str) -> None:
        """Make one of them."""
        window = self.window
        match move:
            case "begin":
                window.begin(window.begun)
            case "answer":
                window.answer(window.answered)
            case "clear":
                window.clear(window.cleared)
            case "end":
                window.end(window.done)
            case "tell":
                window.tell(window.told)
            case worker:
                window.hear(worker, self.others[worker])
                self.others[worker] += 1


@given(placement=PLACEMENTS, staleness=STALENESS, data=st.data())
def test_every_bound_holds_after_every_move_and_no_count_falls(placement, staleness, data):
    window = window_of(placement, staleness)
    steps, before = Steps(window), (FIRST,) * 6
    for _ in range(60):
        steps.do(data.draw(st.sampled_from(steps.moves)))
        counts = (window.told, window.done, window.cleared, window.answered, window.begun, window.settled)
        assert all(late <= now for late, now in zip(before, counts, strict=True))
        before = counts
        assert window.told <= window.done <= window.cleared <= window.answered <= window.begun
        assert window.settled == min([window.told, *steps.others.values()])
        assert len(window.under_way) <= window.plan.most_under_way
        assert list(window.under_way) == list(range(window.done, window.begun))
        assert 0 <= window.held_up <= window.ahead + 1
        assert window.owed == (window.settled if window.settled < window.begun else None)
        assert window.latest == window.answered + window.ahead


@given(placement=PLACEMENTS, staleness=STALENESS, data=st.data())
def test_wherever_it_stops_it_can_go_on_to_any_step(placement, staleness, data):
    window = window_of(placement, staleness)
    steps = Steps(window)
    for _ in range(data.draw(st.integers(0, 30))):
        steps.do(data.draw(st.sampled_from(steps.moves)))
    while window.settled < FIRST + 40:
        moves = steps.moves
        assert moves, "nothing can happen any more"
        steps.do(data.draw(st.sampled_from([*(one for one in moves if one != "begin"), *moves[:1]])))


@pytest.mark.parametrize("staleness", range(4))
def test_a_batch_begins_with_k_others_under_way_and_not_with_one_more(staleness):
    window = window_of(CHAIN, staleness)
    for step in range(FIRST, FIRST + staleness + 1):
        assert step < window.admitted
        window.begin(step)
    assert window.begun >= window.admitted
    window.end(FIRST)
    assert window.begun < window.admitted


def test_who_learns_by_reports_alone_waits_for_the_slowest():
    window = window_of(LOSS_AT_HOME)
    assert window.worker in window.plan.unaware
    for step in range(FIRST, FIRST + window.ahead + 1):
        window.begin(step)
        window.end(step)
    assert window.begun >= window.admitted
    window.hear("near", FIRST)
    assert window.begun >= window.admitted
    window.hear("far", FIRST)
    assert window.begun < window.admitted


def test_who_is_answered_by_all_does_not_wait_for_reports_but_follows_none_that_is_silent():
    window = window_of(CHAIN)
    for step in range(FIRST, FIRST + MOST_UNREPORTED):
        assert step < window.admitted
        window.begin(step)
        window.end(step)
    assert window.begun >= window.admitted
    for worker in ("near", "far"):
        window.hear(worker, FIRST)
    assert window.begun < window.admitted


@pytest.mark.parametrize(
    ("placement", "worker", "latest"), [(CHAIN, AGENT, -1), (DIVIDED, AGENT, 0), (CHAIN, "far", 99)]
)
def test_no_other_worker_can_have_done_what_has_not_begun(placement, worker, latest):
    window = window_of(placement, worker=worker)
    assert window.may_be_done_elsewhere(FIRST + latest)
    assert window.may_be_done_elsewhere(FIRST + latest + 1) == (worker == "far")


def test_a_worker_without_a_part_moves_to_any_step_and_one_with_steps_under_way_does_not():
    window = window_of(CHAIN)
    window.move_to(1 << 40)
    assert (window.begun, window.answered, window.cleared, window.done, window.told) == (1 << 40,) * 5
    window.begin(1 << 40)
    with pytest.raises(AssertionError, match="nothing is under way"):
        window.move_to(0)


def test_steps_are_counted_one_after_the_other():
    window = window_of(CHAIN, staleness=2)
    for wrong in (window.begin, window.answer, window.clear, window.end, window.tell):
        with pytest.raises(AssertionError, match=f"step {FIRST} "):
            wrong(FIRST + 1)
    for early in (window.answer, window.clear, window.end, window.tell):
        with pytest.raises(AssertionError):
            early(FIRST)
    with pytest.raises(AssertionError, match=f"step {FIRST} of 'far' is next"):
        window.hear("far", FIRST + 1)


SHARED = replace(
    CHAIN,
    tiles=(Tile(AGENT, 0, 2, Rows(0, 4)), Tile("near", 0, 2, Rows(4, 8)), Tile("far", 2, 3, WHOLE)),
    owners={0: "far", 1: "far"},
)
"""The near worker owns nothing."""


@pytest.mark.parametrize("staleness", range(3))
def test_no_batch_begins_further_ahead_of_a_worker_without_a_state_than_its_peers_keep_for_it(staleness):
    window = window_of(SHARED, staleness)
    most = window.plan.most_under_way
    assert window.plan.stateless == {"near"}
    for step in range(FIRST, FIRST + most):
        assert step < window.admitted
        window.begin(step)
        window.end(step)
    assert window.begun >= window.admitted
    window.hear("far", FIRST)
    assert window.begun >= window.admitted
    window.hear("near", FIRST)
    assert window.begun < window.admitted
    assert window.repeated == FIRST
    window.begin(window.begun)
    assert window.repeated == FIRST + 1


@pytest.mark.parametrize("staleness", range(3))
def test_a_worker_that_has_lost_all_takes_the_weights_of_the_step_before_and_all_that_may_have_begun_since(staleness):
    window = Window(StepPlan(replace(SHARED, staleness=staleness), FACTS), "near", FIRST, life=1)
    assert (window.done, window.begun, window.told) == (FIRST - 1, FIRST, FIRST)
    assert window.latest == FIRST + window.plan.most_under_way - 1


def test_who_owns_what_changes_or_passes_reports_on_has_a_state():
    assert StepPlan(CHAIN, FACTS).stateless == frozenset()
    frozen = ModelFacts((*FACTS.blocks[:1], BlockFacts("b1", trainable=False), FACTS.blocks[2]))
    assert StepPlan(CHAIN, frozen).stateless == {"near"}
    assert StepPlan(SHARED, FACTS, training=False).stateless == frozenset()
    divided = replace(SHARED, sources=(Source(AGENT, Rows(0, 4)), Source("near", Rows(4, 8))))
    assert StepPlan(divided, FACTS).stateless == frozenset(), "samples enter at it"
