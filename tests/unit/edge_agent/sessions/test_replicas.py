"""Bringing replicas to their keepers: what a keeper's refusal of them means, and what is another failure."""

from types import SimpleNamespace

import pytest

from edge_agent.sessions.membership import Membership
from edge_agent.sessions.replicas import Replicated, bring_replicas_by_any_way, replicate
from shared.checkpoint import CheckpointName
from shared.errors import BusyError, FencedError, NotStoredError, RefusedError, StorageError, UnreachableError
from shared.placement import AGENT, Placement, Rows, Source, Tile
from tests.support.placed import chain_of, dropping

NAME, WHOLE = CheckpointName(0, 3), Rows(0, 8)
TILES = Tile("near", 0, 2, WHOLE), Tile("far", 2, 4, WHOLE)
PLACEMENT = Placement(0, 4, 8, (AGENT, "near", "far"), TILES, (Source(AGENT, WHOLE),))


class Worker:
    """A worker that keeps what it is given, but no block of those at which it fails."""

    def __init__(self, name, failure=None, at=()):
        self.name, self.client, self.failure, self.at, self.kept = name, None, failure, {*at}, []

    def give(self, receiver, transfer):
        async def bring():
            if receiver.failure is not None and receiver.at & transfer.weights_only.keys():
                raise receiver.failure
            receiver.kept += transfer.weights_only

        return [bring]


async def replicated(failure, at, failure_of_device=None):
    """The blocks that each worker keeps after far has failed at some, and what is said of the replicas."""
    near, far, device = Worker("near"), Worker("far", failure, at), Worker(AGENT, failure_of_device, range(4))
    members = Membership({"near": near, "far": far}, (), PLACEMENT, {})
    experiment = SimpleNamespace(chain=chain_of(dropping()), is_raw=lambda block: block == 0, may_keep=lambda *_: True)
    said = await replicate(SimpleNamespace(members=members, experiment=experiment), device, NAME, PLACEMENT)
    return {worker.name: sorted(worker.kept) for worker in (device, near, far)}, said


async def test_what_a_keeper_refuses_the_device_keeps_and_nothing_more():
    whole = Replicated(is_whole=True)
    assert await replicated(None, ()) == ({AGENT: [], "near": [2, 3], "far": [0, 1]}, whole)
    assert await replicated(RefusedError("no raw ones"), [0]) == ({AGENT: [0], "near": [2, 3], "far": [1]}, whole)


@pytest.mark.parametrize("kind", [RefusedError, BusyError, UnreachableError])
async def test_what_a_keeper_cannot_get_at_all_the_device_keeps(kind):
    kept, said = await replicated(kind("it may not dial the other trainer"), [0, 1])
    assert kept == {AGENT: [0, 1], "near": [2, 3], "far": []}
    assert said == Replicated(is_whole=True)


@pytest.mark.parametrize("kind", [RefusedError, StorageError])
async def test_what_the_device_has_no_room_for_has_no_replica_and_that_is_said(kind):
    kept, said = await replicated(UnreachableError("a wall"), [1], kind("no room"))
    assert kept == {AGENT: [], "near": [2, 3], "far": []}
    assert said == Replicated(is_whole=False, lacking="no room")


@pytest.mark.parametrize("kind", [NotStoredError, UnreachableError])
async def test_a_trainer_that_cannot_give_its_part_is_told(kind):
    with pytest.raises(kind, match="the part"):
        await replicated(RefusedError("a wall"), [1], kind("the part"))


async def test_a_session_that_is_over_is_told():
    with pytest.raises(FencedError):
        await replicated(FencedError("another agent has it"), [1])


@pytest.mark.parametrize("kind", [RefusedError, UnreachableError])
async def test_a_trainer_that_cannot_dial_another_one_gets_replicas_through_the_device(kind):
    near, far, device = Worker("near"), Worker("far"), Worker(AGENT)

    def give(receiver, transfer):
        async def bring():
            if receiver is not device:
                raise kind("a wall")
            receiver.kept += transfer.weights_only

        return [bring]

    near.give = give
    await bring_replicas_by_any_way(near, far, device, NAME, [1, 2])
    assert (device.kept, far.kept) == ([1, 2], [1, 2])
    cut_off = Worker("near", kind("a wall"), [1])
    with pytest.raises(kind):
        await bring_replicas_by_any_way(device, cut_off, device, NAME, [1])
