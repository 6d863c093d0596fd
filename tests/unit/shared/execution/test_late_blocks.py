"""The blocks that are updated as late ones: those whose updates wait for others, by the placement and the clipping."""

import pytest

from shared.placement import AGENT, Placement, Rows, Source, Tile
from shared.training.held_blocks import HeldBlocks
from tests.support.placed import batch_of, built, chain_of, in_process, recipe

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES, STEPS = 8, 6
HALF, WHOLE = Rows(0, 4), Rows(0, SAMPLES)
OTHER_HALF = Rows(4, SAMPLES)


def placed(*tiles: Tile, owner: str | None = None, staleness: int = 2) -> Placement:
    workers = tuple(dict.fromkeys((AGENT, *(tile.worker for tile in tiles), *((owner,) if owner else ()))))
    owners = {} if owner is None else {0: owner}
    sources = (Source(AGENT, WHOLE),)
    return Placement(0, 4, SAMPLES, workers, tiles, sources, owners=owners, staleness=staleness)


PAIR = (Tile(AGENT, 0, 2, WHOLE), Tile("near", 2, 4, WHOLE))
SHARED = (Tile(AGENT, 0, 1, HALF), Tile("near", 0, 1, OTHER_HALF), Tile("near", 1, 4, WHOLE))


@pytest.mark.parametrize(
    ("placement", "late", "together"),
    [
        (placed(*PAIR), {AGENT: {0, 1}}, {AGENT: {0, 1}, "near": {2, 3}}),
        (placed(*PAIR, staleness=0), {}, {}),
        (placed(Tile(AGENT, 0, 4, WHOLE)), {}, {}),
        (
            placed(Tile(AGENT, 0, 1, WHOLE), Tile("near", 1, 3, WHOLE), Tile(AGENT, 3, 4, WHOLE)),
            {AGENT: {0}, "near": {1, 2}},
            {AGENT: {0, 3}, "near": {1, 2}},
        ),
        (
            placed(Tile(AGENT, 0, 1, WHOLE), Tile("near", 1, 2, WHOLE), Tile("far", 2, 4, WHOLE)),
            {AGENT: {0}, "near": {1}},
            {AGENT: {0}, "near": {1}, "far": {2, 3}},
        ),
        (placed(*SHARED, owner="near"), {"near": {0}}, {"near": {0, 1, 2, 3}}),
        (placed(*SHARED, owner=AGENT), {AGENT: {0}}, {AGENT: {0}, "near": {1, 2, 3}}),
        (placed(*SHARED, owner="far"), {}, {"near": {1, 2, 3}}),
    ],
    ids=["pair", "K = 0", "device alone", "labels stay", "chain", "shared", "the device owns", "parameter server"],
)
@pytest.mark.parametrize("clip", ["block", "model"])
def test_blocks_whose_updates_wait_are_late_at_their_owner(placement, late, together, clip, monkeypatch):
    found: dict[str, set[int]] = {}
    update = HeldBlocks.update

    def noted(held, indices, step, *more):
        (worker,) = [name for name, chain in chains.items() if chain is held.chain]
        if late_here := set(indices) & set(more[-1]):
            found.setdefault(worker, set()).update(late_here)
        update(held, indices, step, *more)

    monkeypatch.setattr(HeldBlocks, "update", noted)
    chains = {name: chain_of(built("dropping")) for name in placement.workers}
    session = in_process(chains, placement, recipe("sgd", 0.5, clip=clip))
    session.train(0, STEPS, iter([batch_of(step, SAMPLES) for step in range(STEPS)]))
    assert found == (late if clip == "block" else together)
