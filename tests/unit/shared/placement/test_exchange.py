"""The exchange of shared blocks, block by block: its place in programs, and the order of segments that it leaves free."""

from dataclasses import replace
from itertools import dropwhile, pairwise

from hypothesis import given
from hypothesis import strategies as st

from shared.placement import (
    Backward,
    BlockFacts,
    Cargo,
    Crossing,
    Forward,
    Loss,
    ModelFacts,
    Order,
    Placement,
    Receive,
    Rows,
    Send,
    Source,
    StepPlan,
    Sum,
    Tile,
    Update,
    segments,
    stages,
    urgency,
)
from tests.support.placements import WORKERS, models, placements

FACTS = ModelFacts(tuple(BlockFacts(f"b{index}") for index in range(3)))
HALVES = Placement(
    version=0,
    blocks=3,
    batch_size=8,
    workers=("edge", "near"),
    tiles=(Tile("edge", 0, 3, Rows(0, 4)), Tile("near", 0, 3, Rows(4, 8))),
    sources=(Source("edge", Rows(0, 8)),),
    owners=dict.fromkeys(range(3), "near"),
)


def segments_of(placement: Placement, model: ModelFacts, worker: str):
    return segments(StepPlan(placement, model).program(worker))[1]


def names_of(placement: Placement, worker: str) -> list[str]:
    """Return the segments in short: each operation with its block, without those of samples and labels."""
    return [" ".join(filter(None, map(_name, segment))) for segment in segments_of(placement, FACTS, worker)]


def _name(operation) -> str:
    match operation:
        case Send(one) | Receive(one) if one.cargo in (Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS):
            what = "part" if one.cargo is Cargo.WEIGHT_GRADIENT else "weights"
            return f"{'to' if isinstance(operation, Send) else 'from'}:{what}{one.index}"
        case Forward(stage) | Backward(stage, _):
            return f"{type(operation).__name__.lower()}{stage.first}"
        case Sum(block, _) | Update(block):
            return f"{type(operation).__name__.lower()}{block}"
        case Loss():
            return "loss"
    return ""


def test_the_exchange_of_two_workers_by_hand():
    assert names_of(HALVES, "edge") == [
        "forward0",
        "forward1",
        "forward2 loss backward2 to:part2",
        "backward1 to:part1",
        "backward0 to:part0",
        "from:weights0",
        "from:weights1",
        "from:weights2",
    ]
    assert names_of(HALVES, "near") == [
        "forward0",
        "forward1",
        "forward2 loss backward2",
        "backward1",
        "backward0",
        "from:part2 sum2 update2 to:weights2",
        "from:part1 sum1 update1 to:weights1",
        "from:part0 sum0 update0 to:weights0",
    ]


def test_a_forward_waits_for_the_weights_of_its_own_blocks_and_the_exchange_for_the_part_of_its_own_worker():
    edge, near = (Order.of(segments_of(HALVES, FACTS, worker)) for worker in ("edge", "near"))
    assert edge.behind == ((4, 5), (4, 6), (4, 7), (), (), (), (), ())
    assert near.behind == ((4, 7), (4, 6), (4, 5), (), (), (), (), ())
    assert [set(after) for after in edge.after] == [set(), {0}, {1}, {2}, {3}, {4}, {5, 3}, {6, 2}]
    assert [set(after) for after in near.after] == [set(), {0}, {1}, {2}, {3}, {2}, {5, 3}, {6, 4}]


def test_the_next_batch_begins_once_the_weights_of_the_first_block_show_that_all_have_answered():
    plan = StepPlan(HALVES, FACTS)
    assert plan.waited == {"edge": (4, 5)}
    assert plan.most_under_way == 2, "the rest of the weights comes while the next batch is computed"
    assert StepPlan(replace(HALVES, staleness=3), FACTS).most_under_way == 5


@given(data=st.data())
def test_a_part_leaves_right_after_its_own_backward(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    for worker in WORKERS:
        program = StepPlan(placement, model).program(worker)
        for at, one in enumerate(program):
            if isinstance(one, Send) and one.crossing.cargo is Cargo.WEIGHT_GRADIENT:
                before = next(dropwhile(lambda other: isinstance(other, Send), reversed(program[:at])))
                block = one.crossing.index
                goes_back = [other for other in program if isinstance(other, Backward) and block in other.stage.blocks]
                assert not goes_back or goes_back == [before]
                assert all(other.stage.stop - other.stage.first == 1 for other in goes_back)


@given(data=st.data())
def test_weights_of_each_block_are_a_segment_and_any_forward_waits_for_those_of_its_blocks_alone(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    for worker in WORKERS:
        whole = segments_of(placement, model, worker)
        order, news = Order.of(whole), {}
        for number, segment in enumerate(whole):
            for one in segment:
                if isinstance(one, Receive) and one.crossing.cargo is Cargo.WEIGHTS:
                    assert segment == (one,)
                    news[one.crossing.index] = number
                elif isinstance(one, Update):
                    news[one.block] = number
        for number, segment in enumerate(whole):
            blocks = {block for one in segment if isinstance(one, Forward) for block in one.stage.blocks}
            assert bool(order.behind[number]) == bool(blocks)
            done = _with_all_before(order, order.behind[number])
            assert {news[block] for block in blocks & news.keys()} <= done, "the weights of now are of step t - K"
            pulled = {block for block, at in news.items() if at in order.pulls}
            last = max((block for block in blocks & pulled), default=-1)
            assert all(block <= last for block in pulled if news[block] in done), "and no more of them than it needs"


def _with_all_before(order: Order, some) -> set[int]:
    found, left = set(), list(some)
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += order.after[one]
    return found


@given(data=st.data())
def test_where_each_block_has_one_worker_segments_follow_each_other(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    whole = Rows(0, placement.batch_size)
    apart = replace(
        placement,
        tiles=tuple(
            Tile(data.draw(st.sampled_from(WORKERS)), block, block + 1, whole) for block in range(placement.blocks)
        ),
        owners={},
        labels=None,
    )
    plan = StepPlan(apart, model)
    assert plan.most_under_way == plan.ahead + 1
    for worker in WORKERS:
        rest = segments(plan.program(worker))[1]
        order = Order.of(rest)
        assert order.after == tuple((number - 1,) if number else () for number in range(len(rest)))
        assert all(behind in ((), (len(rest) - 1,)) for behind in order.behind)
        assert plan.waited.get(worker) in (None, order.ends)
        assert not any(before.stop == after.first for before, after in pairwise(stages(apart, worker)))


def test_of_what_waits_parts_go_as_they_are_made_and_weights_as_forwards_need_them():
    rows = Rows(0, 4)
    made = [
        (Crossing("edge", "near", Cargo.FEATURE, 0, rows), 3),
        (Crossing("edge", "near", Cargo.WEIGHTS, 2, rows), 2),
        (Crossing("edge", "near", Cargo.WEIGHTS, 0, rows), 3),
        (Crossing("edge", "near", Cargo.WEIGHTS, 1, rows), 2),
        (Crossing("edge", "near", Cargo.WEIGHT_GRADIENT, 5, rows), 3),
        (Crossing("edge", "near", Cargo.WEIGHT_GRADIENT, 3, rows), 2),
        (Crossing("edge", "near", Cargo.WEIGHT_GRADIENT, 4, rows), 2),
        (Crossing("edge", "near", Cargo.ERROR_GRADIENT, 1, rows), 3),
    ]
    ordered = sorted(made, key=lambda one: urgency(*one))
    to_group = sorted(made, key=lambda one: urgency(*one, merged=True))
    assert [(one.cargo, one.index, step) for one, step in ordered] == [
        (Cargo.ERROR_GRADIENT, 1, 3),
        (Cargo.FEATURE, 0, 3),
        (Cargo.WEIGHT_GRADIENT, 4, 2),
        (Cargo.WEIGHT_GRADIENT, 3, 2),
        (Cargo.WEIGHT_GRADIENT, 5, 3),
        (Cargo.WEIGHTS, 1, 2),
        (Cargo.WEIGHTS, 2, 2),
        (Cargo.WEIGHTS, 0, 3),
    ]
    parts = [(one.index, step) for one, step in to_group if one.cargo is Cargo.WEIGHT_GRADIENT]
    assert parts == [(3, 2), (4, 2), (5, 3)], "a group takes each block by itself, and the first is needed first"
