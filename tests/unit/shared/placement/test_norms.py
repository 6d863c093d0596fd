"""Norms of gradients go to one owner, and coefficients come back by the same links."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shared.placement import AGENT, BlockFacts, Cargo, Clip, ModelFacts, Placement, Rows, Source, StepPlan, Tile
from tests.support.placements import models, placements

WHOLE = Rows(0, 4)
LABELS_STAY = Placement(
    version=0,
    blocks=4,
    batch_size=4,
    workers=(AGENT, "near"),
    tiles=(Tile(AGENT, 0, 1, WHOLE), Tile("near", 1, 3, WHOLE), Tile(AGENT, 3, 4, WHOLE)),
    sources=(Source(AGENT, WHOLE),),
)


def exchanged(placement: Placement, *learns: bool) -> list[tuple[str, str, Cargo, tuple[int, ...]]]:
    blocks = tuple(BlockFacts(str(index), trainable=trainable) for index, trainable in enumerate(learns))
    plan = StepPlan(placement, ModelFacts(blocks, clipped_together=True))
    of_clipping = (one for one in plan.crossings if one.cargo in (Cargo.NORMS, Cargo.COEFFICIENT))
    return [(one.sender, one.receiver, one.cargo, one.slots) for one in of_clipping]


def test_no_norm_of_the_device_leaves_it_though_its_first_block_learns_nothing():
    there, back = (Cargo.NORMS, (1, 2)), (Cargo.COEFFICIENT, (0,))
    for learns in (True, False):
        assert exchanged(LABELS_STAY, learns, True, True, True) == [("near", AGENT, *there), (AGENT, "near", *back)]


def test_one_owner_of_all_that_learns_tells_nobody_of_it():
    assert exchanged(LABELS_STAY, False, True, True, False) == []
    assert exchanged(LABELS_STAY, True, False, False, True) == []


@given(data=st.data())
def test_all_that_learns_is_clipped_by_one_who_knows_all_norms_over_links_that_are_there(data):
    drawn = data.draw(models())
    placement = data.draw(placements(drawn))
    apart, together = StepPlan(placement, drawn), StepPlan(placement, replace(drawn, clipped_together=True))
    assert together.links == apart.links
    assert set(apart.crossings) <= set(together.crossings)
    norms = [one for one in together.crossings if one.cargo is Cargo.NORMS]
    back = [one for one in together.crossings if one.cargo is Cargo.COEFFICIENT]
    assert sorted((one.receiver, one.sender) for one in norms) == sorted((one.sender, one.receiver) for one in back)
    known = {
        worker: {
            index for index, block in enumerate(drawn.blocks) if block.trainable and placement.owner(index) == worker
        }
        for worker in placement.workers
    }
    for one in norms:  # in the order in which they can be sent
        assert set(one.slots) == known[one.sender]
        known[one.receiver] |= known.pop(one.sender)
    everything = {index for index, block in enumerate(drawn.blocks) if block.trainable}
    assert everything in known.values()
    assert together.stateless.isdisjoint(one.sender for one in (*norms, *back))


@given(data=st.data())
def test_where_the_loss_is_scaled_one_worker_with_samples_hears_of_all_and_tells_every_other(data):
    drawn = data.draw(models())
    placement = data.draw(placements(drawn))
    apart, scaled = StepPlan(placement, drawn), StepPlan(placement, replace(drawn, scaled=True))
    assert scaled.links == apart.links
    root = scaled.scaling_worker
    assert root in {source.worker for source in placement.sources}
    scales = [one for one in scaled.crossings if one.cargo is Cargo.SCALE]
    told = {root}
    for one in scales:  # in the order in which they can be sent
        assert one.sender in told
        assert one.receiver not in told
        told.add(one.receiver)
    assert told == {root, *(worker for link in scaled.links for worker in link)}
    owners = {placement.owner(index) for index, block in enumerate(drawn.blocks) if block.trainable}
    assert {one.sender for one in scaled.crossings if one.cargo is Cargo.NORMS} >= owners - {root}
    clipping = [worker for worker in placement.workers if Clip() in scaled.program(worker)]
    assert clipping == ([root] if owners else [])
    assert not scaled.stateless
