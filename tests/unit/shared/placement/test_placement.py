"""Placements: the valid ones and their consequences, and the sentence that refuses each other one."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.errors import ConfigError, ProtocolError
from shared.placement import (
    ArrivalJudge,
    Backward,
    BlockFacts,
    Cargo,
    Crossing,
    Forward,
    Link,
    ModelFacts,
    Permissions,
    Placement,
    Receive,
    Route,
    Rows,
    Source,
    StepPlan,
    Tile,
    Window,
    check,
    crossings,
    first_worker,
    hand_over,
    held_blocks,
    stages,
    two_workers,
    with_worker,
)
from tests.support.placements import EVERYBODY, WORKERS, Step, models, placements

FOUR = ModelFacts(tuple(BlockFacts(f"b{index}") for index in range(4)))
WHOLE = Rows(0, 8)
ALONE = Permissions()


def stacked(*cuts: tuple[str, int, int], **changes: object) -> Placement:
    """Return the blocks of FOUR by worker, all on the whole batch, with the samples at the edge."""
    placement = Placement(
        version=0,
        blocks=4,
        batch_size=8,
        workers=WORKERS,
        tiles=tuple(Tile(worker, first, stop, WHOLE) for worker, first, stop in cuts),
        sources=(Source("edge", WHOLE),),
    )
    return replace(placement, **changes)


@given(data=st.data())
def test_programs_of_any_valid_placement_do_every_part_of_a_step_once(data):
    together = {key: data.draw(st.booleans()) for key in ("clipped_together", "scaled")}
    model = replace(data.draw(models()), **together)
    placement = data.draw(placements(model))
    check(placement, model, EVERYBODY)
    step = Step(placement, model).run()
    cells = list(product(range(placement.blocks), range(placement.batch_size)))
    assert sorted(step.forwards) == cells
    assert sorted(step.losses) == list(range(placement.batch_size))
    learning = [cell for cell in cells if model.blocks[cell[0]].trainable]
    assert set(learning) <= set(step.backwards)
    assert len(step.backwards) == len(set(step.backwards))
    changing = [block for block in range(placement.blocks) if model.blocks[block].changes]
    assert sorted(step.updates) == sorted((placement.owner(block), block) for block in changing)
    for worker, block in product(placement.workers, changing):
        assert ((worker, block) in step.fresh) == (block in held_blocks(placement, worker))


@given(data=st.data())
def test_nothing_goes_to_a_worker_that_has_no_use_for_it(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    step = Step(placement, model).run()
    for one in step.sent:
        assert one.sender != one.receiver
        if one.cargo is Cargo.ERROR_GRADIENT:
            assert any(block.trainable for block in model.blocks[: one.index])
    needed = {tuple(sorted((one.sender, one.receiver), key=WORKERS.index)) for one in step.sent}
    linked = {tuple(sorted(link, key=WORKERS.index)) for link in StepPlan(placement, model).links}
    assert needed <= linked
    for link in linked - needed:
        alone = next(worker for worker in link if worker != first_worker(placement))
        assert alone in {source.worker for source in placement.sources} | {tile.worker for tile in placement.tiles}
        assert (alone, first_worker(placement)) not in _joined(needed), "who has another way to report needs none"


@given(data=st.data())
def test_every_worker_that_dials_is_dialled_or_is_the_first(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    plan = StepPlan(placement, model)
    every = plan.links
    dialled = {link.listener for link in every} | {first_worker(placement)}
    assert {link.dialer for link in every} <= dialled, "who dials can tell somebody what becomes of its link"
    assert first_worker(placement) not in {link.listener for link in every}
    parents = {worker: near for worker in WORKERS if (near := plan.report_parent(worker)) is not None}
    assert {(near, far) for far, near in parents.items()} <= set(every), "and that is on the way to the first"


def _joined(pairs):
    """Return all pairs of workers that a path connects, in both orders."""
    joined = {*pairs, *((far, near) for near, far in pairs)}
    for middle, near, far in product(WORKERS, WORKERS, WORKERS):
        if (near, middle) in joined and (middle, far) in joined:
            joined.add((near, far))
    return joined


@given(data=st.data(), training=st.booleans())
def test_a_worker_that_needs_reports_of_all_gets_each_once(data, training):
    model = data.draw(models())
    placement = data.draw(placements(model))
    plan = StepPlan(placement, model, training=training)
    busy = {worker for worker in placement.workers if plan.program(worker)}
    linked = {frozenset(link) for link in plan.links}
    to_hear = {first_worker(placement)} | plan.unaware
    assert plan.unaware <= {source.worker for source in placement.sources}
    heard = {worker: plan.reports_heard(worker) for worker in placement.workers}
    for worker, by_peer in heard.items():
        names = [name for names in by_peer.values() for name in names]
        assert len(names) == len(set(names)), "a report comes once"
        assert worker not in names
        if worker in to_hear:
            assert busy - {worker} <= set(names)
        for peer, those in by_peer.items():
            assert frozenset((worker, peer)) in linked
            passed_on = {name for other, some in heard[peer].items() if other != worker for name in some}
            assert those <= passed_on | {peer}, "nobody says what he has not heard"


@given(data=st.data(), samples=st.integers(1, 8))
def test_a_shorter_batch_is_divided_whole_and_in_the_same_order(data, samples):
    model = data.draw(models())
    placement = data.draw(placements(model))
    samples = min(samples, placement.batch_size)
    for block in range(placement.blocks):
        shares = [tile.rows.scaled(samples, placement.batch_size) for tile in placement.holders(block)]
        assert [sample for rows in shares for sample in range(rows.begin, rows.end)] == list(range(samples))


@given(data=st.data())
def test_only_tensors_that_programs_receive_come_by_links(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    worker = data.draw(st.sampled_from(WORKERS))
    plan = StepPlan(placement, model)
    judge = ArrivalJudge(Window(plan, worker, first_step=5))
    received = [one.crossing for one in plan.program(worker) if isinstance(one, Receive)]
    coming = coming_to(plan, worker)
    assert sorted(map(str, coming)) == sorted(map(str, received))
    for crossing in coming:
        judge.accept(crossing, 5, placement.batch_size)


def coming_to(plan: StepPlan, worker: str) -> list[Crossing]:
    """List all that comes to a worker by its links."""
    return [one for peer in plan.peers(worker) for one in plan.between(peer, worker)]


@given(staleness=st.integers(0, 3))
def test_no_more_than_k_and_one_steps_may_be_under_way_at_a_worker(staleness):
    placement = two_workers("edge", "far", 2, 4, 8, staleness=staleness)
    plan = StepPlan(placement, FOUR)
    window = Window(plan, "far")
    judge = ArrivalJudge(window)
    (feature,) = (one for one in coming_to(plan, "far") if one.cargo is Cargo.FEATURE)
    for step in range(staleness + 1):
        judge.accept(feature, step, 8)
    with pytest.raises(ProtocolError, match=f"step {staleness} is the latest that may come"):
        judge.accept(feature, staleness + 1, 8)
    window.begin(0)
    window.answer(0)
    judge.accept(feature, staleness + 1, 8)


def test_all_parts_of_a_step_are_of_one_batch():
    plan = StepPlan(two_workers("edge", "far", 2, 4, 8), FOUR)
    judge = ArrivalJudge(Window(plan, "far"))
    by_cargo = {one.cargo: one for one in coming_to(plan, "far")}
    feature, labels = by_cargo[Cargo.FEATURE], by_cargo[Cargo.LABEL]
    judge.accept(labels, 0, 5)
    with pytest.raises(ProtocolError, match="a batch of 8 samples; it has 5"):
        judge.accept(feature, 0, 8)
    judge.accept(feature, 0, 5)
    with pytest.raises(ProtocolError, match="a batch of 9 samples; it has 1 to 8"):
        ArrivalJudge(Window(plan, "far")).accept(labels, 0, 9)


def test_all_tensors_of_a_step_are_of_one_length_whoever_sends_them():
    window = Window(StepPlan(stacked(("edge", 0, 1), ("far", 1, 3), ("edge", 3, 4)), FOUR), "far")
    judge = ArrivalJudge(window)
    judge.accept_length("edge", 0, 5)
    judge.note_length(1, 7)
    for step, other in ((0, 6), (1, 5)):
        with pytest.raises(ProtocolError, match=f"of step {step} came from 'near' for a length of {other}; it has "):
            judge.accept_length("near", step, other)
    judge.accept_length("near", 0, 5)


def test_labels_that_stay_are_never_sent():
    placement = stacked(("edge", 0, 1), ("far", 1, 3), ("edge", 3, 4))
    check(placement, FOUR, ALONE)
    sent = Step(placement, FOUR).run().sent
    assert {(one.cargo, one.index) for one in sent} == {
        (Cargo.FEATURE, 1),
        (Cargo.FEATURE, 3),
        (Cargo.ERROR_GRADIENT, 3),
        (Cargo.ERROR_GRADIENT, 1),
    }


def test_an_edge_that_trains_alone_sends_nothing():
    placement = two_workers("edge", "far", 4, 4, 8)
    check(placement, FOUR, Permissions(labels_to=frozenset()))
    assert Step(placement, FOUR).run().sent == []
    assert StepPlan(placement, FOUR).links == ()


def test_a_chain_sends_features_straight_from_worker_to_worker():
    placement = stacked(("edge", 0, 1), ("near", 1, 2), ("far", 2, 4))
    features = [
        (one.sender, one.receiver, one.index) for one in crossings(placement, FOUR) if one.cargo is Cargo.FEATURE
    ]
    assert features == [("edge", "near", 1), ("near", "far", 2)]
    assert StepPlan(placement, FOUR).links == (Link("edge", "near"), Link("edge", "far"), Link("near", "far"))


def test_tiles_that_follow_each_other_on_the_same_samples_are_one_stage():
    placement = stacked(("edge", 0, 1), ("edge", 1, 2), ("far", 2, 4))
    assert stages(placement, "edge") == (Tile("edge", 0, 2, WHOLE),)
    assert [one.stage.stop for one in StepPlan(placement, FOUR).program("edge") if isinstance(one, Forward)] == [2]


def test_a_frozen_edge_is_sent_no_gradient_and_computes_no_backward():
    frozen = ModelFacts((BlockFacts("b0", trainable=False), BlockFacts("b1", trainable=False), *FOUR.blocks[2:]))
    placement = two_workers("edge", "far", 2, 4, 8)
    assert not any(isinstance(one, Backward | Receive) for one in StepPlan(placement, frozen).program("edge"))


HALVES = (Tile("near", 0, 4, Rows(0, 4)), Tile("far", 0, 4, Rows(4, 8)))
REFUSED = [
    (stacked(("edge", 0, 2)), "nobody has block 2 on samples [0, 8)"),
    (stacked(("edge", 0, 3), ("far", 2, 4)), "two workers have block 2 on samples [0, 8)"),
    (stacked(("edge", 0, 4), ("other", 0, 4)), "names worker 'other'; the workers are edge, near, far"),
    (stacked(("edge", 0, 4), workers=("edge", "far", "edge")), "'edge' is named twice"),
    (stacked(("edge", 0, 5)), "must hold at least one block of 0 to 3"),
    (stacked(("edge", 2, 2)), "must hold at least one block"),
    (stacked(tiles=(Tile("edge", 0, 4, Rows(0, 9)),)), "must hold at least one sample of 0 to 7"),
    (stacked(tiles=(Tile("edge", 0, 4, Rows(0, 4)), Tile("edge", 0, 4, Rows(4, 8)))), "two tiles with block 0"),
    (stacked(tiles=HALVES), "block 0 is shared by near, far and has no owner"),
    (stacked(("edge", 0, 4), sources=()), "nobody has the raw samples on samples [0, 8)"),
    (
        stacked(("edge", 0, 4), sources=(Source("edge", Rows(0, 4)), Source("edge", Rows(4, 8)))),
        "'edge' is named as a source twice",
    ),
    (stacked(("edge", 0, 4), owners={4: "edge"}), "block 4 has an owner; the blocks are 0 to 3"),
    (stacked(("edge", 0, 4), owners={0: "other"}), "the owner of block 0 names worker 'other'"),
    (stacked(("far", 0, 4)), "raw samples would go from 'edge' to 'far'"),
    (
        stacked(("edge", 0, 4), labels=frozenset({"far"})),
        "computed by far; it is computed where the last block is, by edge",
    ),
    (stacked(("edge", 0, 4), labels=frozenset({"gpu"})), "labels names worker 'gpu'"),
    (stacked(("edge", 0, 4), staleness=-1), "the staleness is -1"),
    (stacked(("edge", 0, 4), batch_size=0), "the batch size is 0"),
    (stacked(("edge", 0, 4), blocks=3), "made for 3 blocks; the model has 4"),
    (stacked(("edge", 0, 4), codecs={Route("edge", "edge", Cargo.FEATURE): "fp16"}), "it joins two workers"),
    (
        stacked(("edge", 0, 4), codecs={Route("edge", "far", Cargo.LABEL): "fp16"}),
        "only features and error gradients are sent by a codec",
    ),
    (
        stacked(("edge", 0, 4), codecs={Route("edge", "far", Cargo.WEIGHTS): "fp16"}),
        "a codec is named for the cargo weights",
    ),
]


@pytest.mark.parametrize(("placement", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_an_invalid_placement_is_refused_in_a_sentence(placement, sentence):
    with pytest.raises(ConfigError) as refused:
        check(placement, FOUR, ALONE)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_inputs_go_where_they_are_permitted_and_labels_only_where_they_may():
    inverted = stacked(("far", 0, 2), ("edge", 2, 4))
    with pytest.raises(ConfigError, match=r"privacy\.inputs_to"):
        check(inverted, FOUR, ALONE)
    check(inverted, FOUR, Permissions(inputs_to=frozenset({"far"}), labels_to=frozenset()))
    with pytest.raises(ConfigError, match="labels would go from 'edge' to 'far'"):
        check(stacked(("edge", 0, 2), ("far", 2, 4)), FOUR, Permissions(labels_to=frozenset({"near"})))


def test_features_off_which_samples_can_be_read_count_as_samples():
    lookup = replace(FOUR, why_raw=("behind block 'first' all can be read off",))
    sentence = (
        "raw samples would go from 'edge' to 'far': behind block 'first' all can be read off; leave the first 2 blocks"
    )
    with pytest.raises(ConfigError, match=sentence):
        check(stacked(("edge", 0, 1), ("far", 1, 4)), lookup, ALONE)
    check(stacked(("edge", 0, 2), ("far", 2, 4)), lookup, ALONE)


def test_a_source_may_have_back_what_was_made_of_its_own_samples():
    lookup = replace(FOUR, why_raw=("behind block 'first' all can be read off",))
    permitted = Permissions(inputs_to=frozenset({"far"}), labels_to=frozenset())
    check(stacked(("far", 0, 1), ("edge", 1, 4)), lookup, permitted)
    halves = tuple(Source(worker, rows) for worker, rows in (("edge", Rows(0, 4)), ("near", Rows(4, 8))))
    with pytest.raises(ConfigError, match="raw samples would go from 'far' to 'edge'"):
        check(stacked(("far", 0, 1), ("edge", 1, 4), sources=halves), lookup, permitted)


def test_a_feature_that_cannot_be_sent_stays_with_one_worker():
    values = tuple(replace(one, unsent_type="complex64" if one.feature == 2 else "") for one in FOUR.values)
    model = replace(FOUR, values=values)
    check(stacked(("edge", 0, 1), ("near", 1, 4)), model, ALONE)
    sentence = r"what enters block 2 \(b2\) would go from 'edge' to 'near' and holds numbers of type complex64"
    with pytest.raises(ConfigError, match=sentence):
        check(stacked(("edge", 0, 2), ("near", 2, 4)), model, ALONE)


@pytest.mark.parametrize(("samples", "valid"), [(1, False), (2, True)])
def test_a_part_below_what_its_blocks_need_is_refused(samples, valid):
    norm = replace(FOUR, blocks=(replace(FOUR.blocks[0], min_samples=2), *FOUR.blocks[1:]))
    tiles = (Tile("edge", 0, 4, Rows(0, samples)), Tile("far", 0, 4, Rows(samples, 8)))
    placement = stacked(tiles=tiles, owners=dict.fromkeys(range(4), "edge"))
    if valid:
        check(placement, norm, EVERYBODY)
        return
    with pytest.raises(ConfigError, match=r"'edge' has 1 sample of block 0 \(b0\), which needs 2 at least"):
        check(placement, norm, EVERYBODY)


def test_a_whole_batch_is_never_too_small():
    norm = replace(FOUR, blocks=(replace(FOUR.blocks[0], min_samples=2), *FOUR.blocks[1:]))
    whole = Rows(0, 1)
    one = stacked(tiles=(Tile("edge", 0, 4, whole),), sources=(Source("edge", whole),))
    check(replace(one, batch_size=1), norm, ALONE)


@given(data=st.data())
def test_a_handover_gives_another_worker_all_of_one_and_back_is_as_before(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    assume(all(source.worker != "near" for source in placement.sources))
    after = hand_over(placement, "near", "there")
    check(
        after, model, Permissions(inputs_to=EVERYBODY.inputs_to | {"there"}, labels_to=EVERYBODY.labels_to | {"there"})
    )
    assert held_blocks(after, "there") == held_blocks(placement, "near")
    assert not held_blocks(after, "near")
    assert held_blocks(after, "far") == held_blocks(placement, "far")
    assert replace(hand_over(after, "there", "near"), version=placement.version) == placement


def test_two_named_workers_change_places_in_a_handover():
    placement = replace(stacked(("edge", 0, 2), ("near", 2, 4)), labels=frozenset({"near"}))
    after = hand_over(placement, "near", "far")
    assert (after.workers, after.tiles[1].worker, after.labels) == (("edge", "far", "near"), "far", {"far"})


def test_a_worker_without_a_part_is_named_last_and_once():
    placement = stacked(("edge", 0, 4))
    assert with_worker(placement, "there").workers == (*WORKERS, "there")
    assert with_worker(placement, "near") == placement
