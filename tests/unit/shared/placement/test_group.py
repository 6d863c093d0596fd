"""A member's placement: the owner of its blocks gives gradients to the group and takes weights from it."""

import dataclasses

import pytest

from shared.errors import ConfigError
from shared.placement import (
    GROUP,
    BlockFacts,
    Cargo,
    ModelFacts,
    Norms,
    Order,
    Permissions,
    Placement,
    Receive,
    Route,
    Rows,
    Send,
    Source,
    StepPlan,
    Sum,
    Tile,
    Update,
    check,
    segments,
)

WHOLE = Rows(0, 8)
EVERYTHING = Permissions(inputs_to=frozenset({"near"}), gradients_to=frozenset({"near"}))
MODEL = ModelFacts((BlockFacts("a"), BlockFacts("b", trainable=False), BlockFacts("c")), merged=True)


def member(owners, *tiles):
    tiles = tiles or (Tile("edge", 0, 3, WHOLE),)
    return Placement(0, 3, 8, ("edge", "near", "far"), tiles, (Source("edge", WHOLE),), owners)


COPIES = member(dict.fromkeys(range(3), "near"))


def operations(placement, worker, model=MODEL):
    return StepPlan(placement, model).program(worker)


def test_the_owner_gives_each_changing_block_to_the_group_and_sends_on_what_comes_back():
    found = [
        (type(one), one.crossing.index, one.crossing.receiver)
        for one in operations(COPIES, "near")
        if isinstance(one, Send | Receive)
    ]
    given = [(kind, block, to) for block in (2, 0) for kind, to in ((Receive, "near"), (Send, GROUP))]
    taken = [(kind, block, to) for block in (2, 0) for kind, to in ((Receive, "near"), (Send, "edge"))]
    assert found == given + taken


def test_each_block_goes_to_the_group_and_comes_back_by_itself():
    orders = {worker: Order.of(segments(operations(COPIES, worker))[1]) for worker in ("edge", "near")}
    near, edge = orders["near"], orders["edge"]
    assert near.apart == (0, 1), "the gradient of either block"
    assert near.after == ((), (), (0,), (1,)), "new weights wait for the gradient of their own block alone"
    assert near.ends == (0, 1)
    assert edge.pulls == (5, 6), "of block 0, which is needed first, and of block 2"
    assert not edge.apart


def test_nobody_updates_or_clips_but_the_group():
    for worker in ("edge", "near"):
        assert not [one for one in operations(COPIES, worker) if isinstance(one, Update | Norms)]
    assert not [one for one in operations(COPIES, "near") if isinstance(one, Sum)], (
        "what a member gives goes on as it came"
    )


def test_each_slice_of_a_block_goes_and_comes_back_by_itself():
    blocks = (BlockFacts("a", slices=2), BlockFacts("b", trainable=False), BlockFacts("c", slices=3))
    plan = StepPlan(COPIES, dataclasses.replace(MODEL, blocks=blocks))
    near, edge = (Order.of(segments(plan.program(worker))[1]) for worker in ("near", "edge"))
    assert near.apart == (0, 1, 2, 3, 4), "three slices of block 2, and two of block 0"
    assert near.after == ((), (), (), (), (), (0,), (1,), (2,), (3,), (4,)), "its own gradient alone"
    forward_0, forward_1, forward_2 = edge.behind[:3]
    assert set(edge.pulls) & set(forward_0) <= set(edge.pulls[:2]), "block 0 needs its own slices"
    assert edge.pulls[1] in forward_0
    assert edge.pulls[4] in forward_2
    assert not forward_1[1:]


def test_one_worker_computes_each_block_of_a_group():
    halves = (Tile("edge", 0, 3, Rows(0, 4)), Tile("near", 0, 3, Rows(4, 8)))
    with pytest.raises(ConfigError, match=r"several workers compute block 0 \(a\); in a group one does"):
        check(member(dict.fromkeys(range(3), "near"), *halves), MODEL, EVERYTHING)


def test_no_link_carries_what_the_group_gets():
    plan = StepPlan(COPIES, MODEL)
    assert plan.links == (("edge", "near"),)
    assert not [one for one in plan.crossings if GROUP in (one.sender, one.receiver)]


def test_blocks_that_only_the_owner_runs_are_given_in_one_go():
    tiles = (Tile("edge", 0, 1, WHOLE), Tile("near", 1, 3, WHOLE))
    whole = operations(member({0: "near"}, *tiles), "near")
    to_group = [place for place, one in enumerate(whole) if isinstance(one, Send) and one.crossing.receiver == GROUP]
    from_group = [place for place, one in enumerate(whole) if isinstance(one, Receive) and one.crossing.sender == GROUP]
    assert max(to_group) < min(from_group)
    assert all(whole[place].crossing.cargo is Cargo.WEIGHTS for place in from_group)


@pytest.mark.parametrize(("staleness", "most"), [(0, 2), (2, 4)])
def test_weights_come_while_the_next_step_is_computed(staleness, most):
    plan = StepPlan(dataclasses.replace(COPIES, staleness=staleness), MODEL)
    assert (plan.ahead, plan.most_under_way) == (staleness, most)
    assert plan.unaware == frozenset(), "the weights tell the device how far the trainer is"


def test_trainers_own_all_that_changes():
    check(COPIES, MODEL, EVERYTHING)
    both = Permissions(inputs_to=frozenset({"near", "far"}), gradients_to=frozenset({"near", "far"}))
    spread = member({0: "near", 1: "near", 2: "far"})
    check(spread, MODEL, both)
    assert StepPlan(spread, MODEL).links == (("edge", "near"), ("edge", "far"))
    with pytest.raises(ConfigError, match=r"block 0 \(a\) is owned by 'edge'; in a group a trainer owns every block"):
        check(member({1: "near", 2: "near"}), MODEL, EVERYTHING)
    with pytest.raises(ConfigError, match=r"the loss is scaled .* in a group it cannot be"):
        check(COPIES, dataclasses.replace(MODEL, scaled=True), EVERYTHING)
    with pytest.raises(
        ConfigError, match=r"block 0 \(a\) and block 2 \(c\) use one weight; in a group one trainer owns both"
    ):
        check(spread, dataclasses.replace(MODEL, together=((0, 2),)), both)


def test_gradients_go_to_the_group_only_where_that_is_permitted():
    """Also those of blocks that touch no sample and no label."""
    model = dataclasses.replace(MODEL, blocks=(*MODEL.blocks[:2], BlockFacts("c"), BlockFacts("loss", trainable=False)))
    placement = Placement(
        0,
        4,
        8,
        ("edge", "near"),
        (Tile("edge", 0, 4, WHOLE),),
        (Source("edge", WHOLE),),
        dict.fromkeys(range(4), "near"),
    )
    model = ModelFacts((BlockFacts("a", trainable=False), *model.blocks[1:]), merged=True)
    check(placement, model, Permissions(gradients_to=frozenset({"near"})))
    with pytest.raises(ConfigError, match=r"block 2 \(c\) would go from 'edge' to 'near'.*privacy.gradients_to"):
        check(placement, model, Permissions())
    check(placement, dataclasses.replace(model, merged=False), Permissions())


def test_a_codec_takes_the_gradients_and_weights_of_a_group_and_no_others():
    routes = Route("edge", "near", Cargo.WEIGHT_GRADIENT), Route("near", "edge", Cargo.WEIGHTS)
    halves = (Tile("edge", 0, 3, Rows(0, 4)), Tile("near", 0, 3, Rows(4, 8)))
    for route in routes:
        coded = dataclasses.replace(COPIES, codecs={route: "uniform8"})
        check(coded, MODEL, EVERYTHING)
        with pytest.raises(ConfigError, match=f"a codec is named for the cargo {route.cargo}; only"):
            check(dataclasses.replace(coded, tiles=halves), dataclasses.replace(MODEL, merged=False), EVERYTHING)
