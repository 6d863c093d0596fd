"""Chains among placements: their recognition, their cuts, and their form at other cuts."""

from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.placement import Placement, Rows, Source, Tile, at_cuts, chain_workers, cuts_of, two_workers

WHOLE = Rows(0, 8)


def placed(*tiles: Tile, **changes: object) -> Placement:
    whole = Placement(0, 6, 8, ("edge", "near", "far"), tiles, (Source("edge", WHOLE),))
    return replace(whole, **changes)


CHAIN = placed(Tile("edge", 0, 1, WHOLE), Tile("near", 1, 4, WHOLE), Tile("far", 4, 6, WHOLE))
PAIR = placed(Tile("edge", 0, 2, WHOLE), Tile("far", 2, 6, WHOLE))
LABELS_STAY = placed(Tile("edge", 0, 1, WHOLE), Tile("near", 1, 4, WHOLE), Tile("edge", 4, 6, WHOLE))
BACKWARDS = placed(Tile("near", 0, 2, WHOLE), Tile("edge", 2, 6, WHOLE))
SHARED = placed(
    Tile("edge", 0, 2, Rows(0, 4)), Tile("near", 0, 2, Rows(4, 8)), Tile("far", 2, 6, WHOLE), owners={0: "edge"}
)


@pytest.mark.parametrize(
    ("placement", "cuts", "workers"),
    [
        (CHAIN, (1, 4), ("edge", "near", "far")),
        (PAIR, (2,), ("edge", "far")),
        (two_workers("edge", "far", 6, 6, 8), (), ("edge",)),
        (LABELS_STAY, None, None),
        (BACKWARDS, None, None),
        (SHARED, None, None),
    ],
)
def test_a_chain_is_told_from_other_placements(placement, cuts, workers):
    assert (cuts_of(placement), chain_workers(placement)) == (cuts, workers)


def test_other_cuts_change_the_tiles_alone():
    moved = at_cuts(CHAIN, (3, 5))
    assert cuts_of(moved) == (3, 5)
    assert replace(moved, tiles=CHAIN.tiles) == CHAIN
    assert at_cuts(CHAIN, (1, 4)) == CHAIN


def test_cuts_at_the_end_leave_the_last_workers_without_blocks_and_give_them_some_again():
    near = at_cuts(CHAIN, (3, 6))
    assert [tile.worker for tile in near.tiles] == [*CHAIN.workers[:2]]
    assert at_cuts(near, (1, 4)) == CHAIN
    assert at_cuts(at_cuts(CHAIN, (6, 6)), (1, 4)) == CHAIN


@pytest.mark.parametrize("cuts", [(), (3,), (3, 3), (4, 3), (0, 3), (6, 3), (1, 2, 3)])
def test_cuts_that_leave_a_worker_between_others_without_blocks_are_refused(cuts):
    with pytest.raises(ConfigError, match=r"with 6 blocks on 3 workers there must be 2, rising, from 1 to 6"):
        at_cuts(CHAIN, cuts)


@pytest.mark.parametrize("placement", [LABELS_STAY, BACKWARDS, SHARED])
def test_a_placement_that_is_no_chain_has_no_cuts_to_move(placement):
    with pytest.raises(ConfigError, match="there are no cuts to move"):
        at_cuts(placement, (2, 4))
