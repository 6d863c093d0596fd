"""Members that end the training of a group where they may not, or not at all of its trainers: nobody waits for ever."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from isthmus import run_training
from shared.errors import RefusedError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.integration.peers.test_hostile_members import NOTHING_KEPT, Members, life_of, until_linked
from tests.support.group_flags import ACCEPTING, SHARD, group_of, member, member_of_two, trained
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import running_trainer
from tests.support.running_group import SLOWLY
from tests.support.wire import RawPeer

pytestmark = pytest.mark.usefixtures("one_thread")
Code = grpc.StatusCode


async def test_a_member_that_tells_another_trainer_of_an_end_where_the_group_is_not_is_refused():
    flags = group_of(2, NOTHING_KEPT)
    async with running_trainer(*flags) as near, running_trainer(*flags) as far, RawPeer(far.address) as peer:
        configs = [member_of_two(rank, near, far, size=2, more=[SHARD]) for rank in range(2)]
        first = asyncio.create_task(run_training(configs[0]))
        members = Members(far, peer)
        await until_linked(members, first)
        request = pb.OpenSessionRequest()
        request.CopyFrom(members.group.seats.sessions[0].request)
        request.group.rank, request.group.steps = 1, 3
        end = await peer.unary("OpenSession", request.SerializeToString())
        session = pb.OpenSessionResponse.FromString(end.responses[0]).session_id
        await peer.join(session)
        found, said = await members.begin(1, life_of(number=members.group.life))
        assert found is Code.INVALID_ARGUMENT, said
        assert "the group cannot end before step 3; it is at step 0" in said
        await peer.close_session(session)
        (state,) = await trained(configs[1:])
        await first
    assert_same_bits(group_state(configs), state)


async def test_a_member_ends_the_group_at_no_other_step_than_that_it_is_at():
    async with running_trainer(*group_of(2, NOTHING_KEPT)) as server, RawPeer(server.address) as peer:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        first = asyncio.create_task(run_training(configs[0]))
        members = Members(server, peer)
        await until_linked(members, first)
        for last_step in (0, 4, 6, 2**40):
            found, said = await members.leave(0, last_step, ends_group=True)
            assert found is Code.INVALID_ARGUMENT, said
            assert f"the group cannot end before step {last_step + 1}; it is at step 0" in said
        assert (await members.leave(0, 5, ends_group=True))[0] is Code.OK, "it ends then anyway"
        (state,) = await trained(configs[1:])
        await first
    assert_same_bits(group_state(configs), state)


async def test_a_member_cannot_end_a_group_that_goes_on_without_late_members():
    group = 'groups=[{name="line", size=2, leave_out_seconds=60.0}]'
    async with running_trainer(group, ACCEPTING, NOTHING_KEPT) as server, RawPeer(server.address) as peer:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        first = asyncio.create_task(run_training(configs[0]))
        members = Members(server, peer)
        await until_linked(members, first)
        found, said = await members.leave(0, 0, ends_group=True)
        assert found is Code.FAILED_PRECONDITION, said
        assert "the group goes on without late members (leave_out_seconds)" in said
        await trained(configs[1:])
        await first


async def test_a_member_that_gives_up_a_session_before_it_begins_still_lacks_what_the_group_has_made():
    for_ever = 'data.test={factory="tests.support.samples:Slow", kwargs={seconds=0.5}}'
    async with running_trainer(*group_of(2, NOTHING_KEPT)) as server, RawPeer(server.address) as peer:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        first = asyncio.create_task(run_training(configs[0]))
        members = Members(server, peer)
        await until_linked(members, first)
        evaluating = asyncio.create_task(run_training(member(1, server, size=2, more=[SHARD, for_ever])))
        state = (await first).module.state_dict()
        request = members.group.seats.sessions[1].request
        evaluating.cancel()
        await asyncio.gather(evaluating, return_exceptions=True)
        opened = await peer.unary("OpenSession", request.SerializeToString())
        await peer.close_session(pb.OpenSessionResponse.FromString(opened.responses[0]).session_id)
        assert_same_bits(state, (await trained(configs[1:]))[0])
    assert_same_bits(group_state(configs), state)


async def ended_at(server, training):
    """Have a member tell one trainer, in the middle of training, that the group ends; returns the steps after which it does."""
    async with RawPeer(server.address) as peer:
        members = Members(server, peer)
        code = None
        while code is not Code.OK:  # it may be told only between two steps
            await asyncio.wait({training}, timeout=0.01)
            assert not training.done(), training.result()
            if (step := members.group.step) >= 3:
                code, said = await members.leave(0, step - 1, ends_group=True)
                assert code in (Code.OK, Code.INVALID_ARGUMENT), said
    assert members.group.steps == step
    return step


@asynccontextmanager
async def slow_group():
    """Two trainers, the deciding one first, the configurations of two members, and their training."""
    flags, more = group_of(2, NOTHING_KEPT), [SHARD, "training.max_steps=30", *SLOWLY[0]]
    async with running_trainer(*flags) as near, running_trainer(*flags) as far:
        configs = [member_of_two(rank, near, far, size=2, more=more) for rank in range(2)]
        yield near, far, configs, asyncio.gather(*map(run_training, configs), return_exceptions=True)


@pytest.mark.slow
async def test_where_a_member_tells_the_deciding_trainer_alone_the_others_tell_the_rest_or_are_refused_in_a_sentence():
    """They are refused where another trainer has done one step more meanwhile."""
    async with slow_group() as (near, _, configs, training):
        steps = await ended_at(near, training)
        ended = await training
    limited = configs[0].training.model_copy(update={"max_steps": steps})
    expected = group_state([config.model_copy(update={"training": limited}) for config in configs])
    for each in ended:
        if isinstance(each, RefusedError):
            assert f"the group cannot end before step {steps}; it is at step {steps + 1}" in str(each)
        else:
            assert_same_bits(expected, each.module.state_dict())


@pytest.mark.slow
async def test_where_a_member_tells_another_trainer_alone_the_others_are_refused_in_a_sentence():
    async with slow_group() as (_, far, _, training):
        steps = await ended_at(far, training)
        for refusal in await training:
            assert isinstance(refusal, RefusedError), refusal
            assert (
                f"does 30 steps at the trainer that decides, and a member has ended it here alone, after {steps};"
                in str(refusal)
            )
