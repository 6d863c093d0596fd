"""Bringing replicas to their keepers: what a keeper's refusal of them means, and what is another failure."""

from types import SimpleNamespace

import pytest

from edge_agent.sessions.members import Members
from edge_agent.sessions.replicas import replicate
from shared.checkpoint import CheckpointName
from shared.errors import BusyError, FencedError, NotStoredError, RefusedError, UnreachableError
from shared.placement import AGENT, Placement, Rows, Source, Tile
from tests.support.placed import chain_of, dropping

NAME, WHOLE = CheckpointName(0, 3), Rows(0, 8)
TILES = Tile("near", 0, 2, WHOLE), Tile("far", 2, 4, WHOLE)
PLACEMENT = Placement(0, 4, 8, (AGENT, "near", "far"), TILES, (Source(AGENT, WHOLE),))


class Worker:
    """A worker that keeps what it is given, until it fails."""

    def __init__(self, name, failure=None):
        self.name, self.failure, self.kept = name, failure, []

    def give(self, receiver, transfer):
        async def bring():
            if receiver.failure is not None and 0 in transfer.weights_only:
                raise receiver.failure
            receiver.kept += transfer.weights_only

        return [bring]


async def replicated(failure):
    """The workers after far has failed at block 0, and the trainers that were asked for no more."""
    near, far, device = Worker("near"), Worker("far", failure), Worker(AGENT)
    members = Members({"near": near, "far": far}, (), PLACEMENT, {})
    experiment = SimpleNamespace(chain=chain_of(dropping()), is_raw=lambda block: block == 0, may_keep=lambda *_: True)
    try:
        assert await replicate(SimpleNamespace(members=members, experiment=experiment), device, NAME, PLACEMENT)
    finally:
        assert members.refusing == ({"far"} if type(failure) is RefusedError else set())
    return {worker.name: sorted(worker.kept) for worker in (device, near, far)}


async def test_what_a_keeper_refuses_the_device_keeps_and_nothing_more():
    assert await replicated(None) == {AGENT: [], "near": [2, 3], "far": [0, 1]}
    assert await replicated(RefusedError("it takes none")) == {AGENT: [0], "near": [2, 3], "far": [1]}


@pytest.mark.parametrize("kind", [FencedError, NotStoredError, BusyError, UnreachableError])
async def test_another_failure_of_a_keeper_is_told(kind):
    with pytest.raises(kind):
        await replicated(kind("it is so"))
