"""A member's word alone takes nothing from a group: neither steps that are done, nor checkpoints, nor bits."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.integration.peers.test_hostile_members import Members, life_of, placed_at
from tests.support.group_flags import SHARD, group_of, member_of_two, trained
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import running_trainer
from tests.support.running_group import SLOWLY
from tests.support.wire import RawPeer

pytestmark = pytest.mark.usefixtures("one_thread")
Code = grpc.StatusCode


@asynccontextmanager
async def in_the_middle(tmp_path, size):
    """Have a group on two trainers train while the body runs, from its third step on, and end with the bits of one loop."""
    flags = [group_of(size, f"checkpoints.location={tmp_path / name}") for name in ("near", "far")]
    async with running_trainer(*flags[0]) as near, running_trainer(*flags[1]) as far:
        more = [SHARD, "training.max_steps=10"]
        configs = [member_of_two(rank, near, far, size=size, more=[*more, *SLOWLY[0]]) for rank in range(size)]
        training = asyncio.create_task(trained(configs))
        while min(server.service.groups.all[0].step for server in (near, far)) < 3:
            await asyncio.wait({training}, timeout=0.01)
            assert not training.done(), training.result()
        yield near, far
        states = await training
        plain = [member_of_two(rank, near, far, size=size, more=more) for rank in range(size)]
    for state in states:
        assert_same_bits(group_state(plain), state)


@pytest.mark.parametrize("at", ["near", pytest.param("far", marks=pytest.mark.slow)])
async def test_one_member_cannot_have_a_group_go_back(at, tmp_path):
    async with in_the_middle(tmp_path, 2) as (near, far):
        server = near if at == "near" else far
        claim = placed_at(1) if at == "near" else life_of(number=9)
        async with RawPeer(server.address) as peer:
            members = Members(server, peer)
            life, step = members.group.life, members.group.step
            for _ in range(2):
                code, said = await members.begin(0, claim)
                assert code is Code.UNAVAILABLE, said
                assert "rank 0 says that it goes back to step 0; ranks [1] have to say so, too" in said
            assert members.group.life == life
            assert members.group.step >= step


async def test_all_members_together_have_a_group_begin_again_with_the_bits_of_one_loop(tmp_path):
    async with in_the_middle(tmp_path, 1) as (near, far), RawPeer(near.address) as peer:
        members = Members(near, peer)
        there = await far.service.groups.all[0].position()
        well = pb.Beginning(group=pb.GroupBeginning(others=[there.message]))
        assert (await members.begin(0, well))[0] is Code.OK, "it has other weights than its first ones now"
        code, said = await members.begin(0, placed_at(1))
        assert code is Code.NOT_FOUND, said
