"""Members of a group that mean harm: each is refused in one sentence, and the others end with the bits of the group."""

import asyncio
import struct
from contextlib import asynccontextmanager

import grpc
import pytest

from cloud_trainer.groups import newcomers
from isthmus import run_training
from shared.errors import IsthmusError, RefusedError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import Role
from tests.integration.training.test_groups import first_member
from tests.support.group_flags import ACCEPTING, SHARD, group_of, member, member_flags, member_of_two, trained
from tests.support.group_members import PlainCodecs, group_state
from tests.support.peers.hostile_member import giving
from tests.support.peers.lying_trainer import lying_trainer
from tests.support.peers.strangers import ALL, Doorkeeper, path_of
from tests.support.plain import assert_same_bits
from tests.support.running import GIVE_UP_AT_ONCE, edge_config, running_trainer
from tests.support.wire import RawPeer, open_request

pytestmark = pytest.mark.usefixtures("one_thread")
Code = grpc.StatusCode
CODED, EXACT = "group.codec=uniform8", "group.codec=raw"
NOTHING_KEPT = "checkpoints.location=none"
RANGE = 8
"""Place of the range of values in what uniform8 sends: the lowest and the highest, as float32."""


def reframed(**changes):
    """Change fields of the frame."""

    def change(gradient):
        frame, _ = gradient
        for name, value in changes.items():
            setattr(frame, name, value)
        return [gradient]

    return change


def announced(**changes):
    """Change fields of the tensor's header."""

    def change(gradient):
        frame, _ = gradient
        for name, value in changes.items():
            setattr(frame.tensor, name, value)
        return [gradient]

    return change


def longer(gradient):
    frame, payload = gradient
    frame.tensor.encoded_bytes += 1
    return [(frame, payload + b"\0")]


def written(place, numbers):
    """Write other float32 numbers into the bytes."""

    def change(gradient):
        frame, payload = gradient
        struct.pack_into(f"<{len(numbers)}f", payload, place, *numbers)
        return [(frame, payload)]

    return change


NAN, INFINITE = float("nan"), float("inf")
GRADIENTS = {
    "a codec that was not agreed": (CODED, announced(codec="uniform4"), Code.INVALID_ARGUMENT, "'uniform8' is agreed"),
    "no codec where one was agreed": (CODED, announced(codec="raw"), Code.INVALID_ARGUMENT, "'uniform8' is agreed"),
    "a codec that there is not": (CODED, announced(codec="z" * 5000), Code.INVALID_ARGUMENT, "'uniform8' is agreed"),
    "another size": (CODED, longer, Code.INVALID_ARGUMENT, "bytes"),
    "a terabyte": (CODED, announced(encoded_bytes=2**40), Code.INVALID_ARGUMENT, "bytes"),
    "a lowest value that is none": (CODED, written(RANGE, [NAN]), Code.INVALID_ARGUMENT, "range is infinite or rev"),
    "a range without end": (CODED, written(RANGE, [0.0, INFINITE]), Code.INVALID_ARGUMENT, "range is infinite or rev"),
    "a range the wrong way": (CODED, written(RANGE, [1.0, -1.0]), Code.INVALID_ARGUMENT, "range is infinite or rev"),
    "a range that is none": (CODED, written(RANGE, [NAN, NAN]), Code.INVALID_ARGUMENT, "numbers that are not finite"),
    "a number that is none": (EXACT, written(0, [NAN]), Code.INVALID_ARGUMENT, "numbers that are not finite"),
    "an infinite number": (EXACT, written(0, [-INFINITE]), Code.INVALID_ARGUMENT, "numbers that are not finite"),
    "twice": (EXACT, lambda one: [one, one], Code.INVALID_ARGUMENT, "came where"),
    "of the step before": (EXACT, reframed(step=0), Code.INVALID_ARGUMENT, "step 1 is next"),
    "of a step to come": (EXACT, reframed(step=2), Code.INVALID_ARGUMENT, "step 1 is next"),
    "of a step that there is not": (EXACT, reframed(step=2**64 - 1), Code.INVALID_ARGUMENT, "step 1 is next"),
    "of a block that there is not": (EXACT, reframed(block=77), Code.INVALID_ARGUMENT, "block"),
    "of the last block that can be said": (EXACT, reframed(block=2**32 - 1), Code.INVALID_ARGUMENT, "block"),
    "of a tensor that there is not": (EXACT, reframed(slot=99), Code.INVALID_ARGUMENT, "slot"),
    "weights in its place": (EXACT, reframed(role=Role.ROLE_WEIGHTS), Code.INVALID_ARGUMENT, "weights"),
    "norms, of which a group's members tell none": (
        EXACT,
        reframed(role=Role.ROLE_NORMS),
        Code.INVALID_ARGUMENT,
        "norms",
    ),
    "a scale of the loss, which a group has not": (
        EXACT,
        reframed(role=Role.ROLE_SCALE),
        Code.INVALID_ARGUMENT,
        "scale",
    ),
    "of no samples": (EXACT, reframed(batch_samples=0), Code.INVALID_ARGUMENT, "samples"),
    "of more samples than a batch has": (EXACT, reframed(batch_samples=2**31), Code.INVALID_ARGUMENT, "samples"),
    "under another placement": (EXACT, reframed(placement_version=1), Code.FAILED_PRECONDITION, "under placement 1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("flag", [CODED, pytest.param(EXACT, marks=pytest.mark.slow)])
async def test_a_gradient_that_may_not_be_ends_its_member_alone(flag):
    cases = {case: given for case, (of, *given) in GRADIENTS.items() if of is flag}
    more = [SHARD, flag]
    async with (
        running_trainer(*group_of(2, NOTHING_KEPT)) as server,
        lying_trainer(server.address) as (trainer, address),
        first_member(server, size=2, more=more) as first,
    ):
        flags = [*member_flags(1, size=2, more=more), f"trainer.address={address}", GIVE_UP_AT_ONCE]
        for case, (change, code, sentence) in cases.items():
            trainer.refusals.clear()
            trainer.of_requests = giving(change, step=0 if flag is CODED else 1)  # before a codec has left anything
            with pytest.raises(IsthmusError):
                await run_training(edge_config(*flags))
            assert [(name, found) for name, found, _ in trainer.refusals] == [("Link", code)], case
            assert sentence in trainer.refusals[0][2], case
        second = member(1, server, size=2, more=more)
        (state,) = await trained([second])
    assert_same_bits(group_state([first, second], codecs=PlainCodecs(flag.partition("=")[2])), state)


class Members:
    """The sessions of members that are linked, and a peer that knows their ids and makes calls of its own."""

    def __init__(self, server, peer):
        self.server, self.peer = server, peer
        (self.group,) = server.service.groups.all

    async def call(self, method, request):
        """Make a call, and return its status and sentence."""
        end = await self.peer.unary(method, request.SerializeToString())
        assert end.details.isprintable()
        return end.code, end.details

    def of(self, rank, **changes):
        """Return the fields that name the session of a rank, and its agent, in a call."""
        session = self.group.seats.sessions[rank]
        return {"session_id": session.id, "fence": pb.Fence(session_term=session.attachment.term)} | changes

    async def leave(self, rank, last_step, *, ends_group=False, **changes):
        request = pb.LeaveGroupRequest(**self.of(rank, **changes), last_step=last_step, ends_group=ends_group)
        return await self.call("LeaveGroup", request)

    async def join(self, rank, life, first_step, **changes):
        request = pb.JoinGroupRequest(**self.of(rank, **changes), life=life, first_step=first_step)
        return await self.call("JoinGroup", request)

    async def begin(self, rank, beginning, **changes):
        named = self.of(rank, **changes)
        placement = self.group.seats.sessions[rank].request.placement
        request = pb.RestoreWorkerRequest(**named, placement=placement, beginning=beginning)
        return await self.call("RestoreWorker", request)


async def until_linked(members, training):
    """Wait until a member of the group is linked."""
    while not members.group.seats.attached:
        await asyncio.wait({training}, timeout=0.01)
        assert not training.done(), training.result()


@asynccontextmanager
async def one_linked():
    """Have rank 0 wait for rank 1 at step 0; the body may say what it wants, and the group ends as if nobody had."""
    flags = group_of(2, NOTHING_KEPT)
    async with (
        running_trainer(*flags) as server,
        RawPeer(server.address) as peer,
        first_member(server, size=2, more=[SHARD]) as first,
    ):
        members = Members(server, peer)
        life = members.group.life
        yield members
        assert (members.group.life, members.group.step) == (life, 0)
        second = member(1, server, size=2, more=[SHARD])
        (state,) = await trained([second])
    assert_same_bits(group_state([first, second]), state)


def life_of(**changes):
    """Return the beginning of a member in a life that another trainer has decided."""
    life = pb.GroupLife(**{"number": 1, "checkpoint_steps": 2, "ranks": [0, 1]} | changes)
    return pb.Beginning(group=pb.GroupBeginning(life=life))


def placed_at(trainers):
    """Return the beginning of a member that tells where its group is at so many other trainers."""
    return pb.Beginning(group=pb.GroupBeginning(others=[pb.GroupPosition()] * trainers))


FOREIGN = {"session_id": "5e55" * 8}
LATE, EARLY = {"fence": pb.Fence(session_term=2**40)}, {"fence": pb.Fence()}


CALLS = [
    (lambda of: of.leave(0, 2**64 - 1), Code.INVALID_ARGUMENT, "no member of a group can do step"),
    (lambda of: of.leave(0, 3, **FOREIGN), Code.NOT_FOUND, "there is no session"),
    (
        lambda of: of.leave(0, 2, ends_group=True),
        Code.INVALID_ARGUMENT,
        "the group cannot end before step 3; it is at step 0",
    ),
    (lambda of: of.leave(0, 2, ends_group=True, **EARLY), Code.ABORTED, "was attached with term 1"),
    (lambda of: of.leave(0, 3, **EARLY), Code.ABORTED, "was attached with term 1"),
    (lambda of: of.leave(0, 3, **LATE), Code.ABORTED, "was attached with term 1"),
    (lambda of: of.join(0, 1, 2**64 - 1), Code.INVALID_ARGUMENT, "nobody can join a group at step"),
    (lambda of: of.join(0, 2**64 - 1, 1), Code.INVALID_ARGUMENT, "nobody can join a group at step"),
    (lambda of: of.join(0, 1, 1, **FOREIGN), Code.NOT_FOUND, "there is no session"),
    (lambda of: of.join(0, 1, 1, **EARLY), Code.ABORTED, "was attached with term 1"),
    (
        lambda of: of.join(0, of.group.life, 1),
        Code.FAILED_PRECONDITION,
        "rank 0 of group 'line' was not told to join",
    ),
    (
        lambda of: of.begin(0, life_of(number=2)),
        Code.INVALID_ARGUMENT,
        "a member first asks the trainer of the first",
    ),
    (
        lambda of: of.begin(0, placed_at(1)),
        Code.INVALID_ARGUMENT,
        "the positions of 1 other trainers; the group has 0",
    ),
    (lambda of: of.begin(0, placed_at(17)), Code.INVALID_ARGUMENT, "to be at 17 other trainers; 16 is the most"),
]


async def test_calls_that_may_not_be_are_answered_and_change_nothing():
    async with one_linked() as members:
        for asked, code, sentence in CALLS:
            found, said = await asked(members)
            assert found is code, said
            assert sentence in said


LIVES = {
    "a number far ahead": (life_of(number=2**40), Code.INVALID_ARGUMENT, "is said to be in life 1099511627776"),
    "a thousand members": (life_of(ranks=range(1000)), Code.INVALID_ARGUMENT, "to have 1000 members; 2 is the most"),
    "a rank that there is not": (
        life_of(number=9, ranks=[0, 7]),
        Code.INVALID_ARGUMENT,
        "cannot have a member of rank 7",
    ),
    "a joiner that there is not": (
        life_of(number=9, ranks=[0], joiners=[pb.GroupJoiner(rank=2**31, first_step=3)]),
        Code.INVALID_ARGUMENT,
        "cannot have a member of rank 2147483648",
    ),
    "a checkpoint that is not here": (
        life_of(number=9, origin=pb.CheckpointName(lineage=8, step=2)),
        Code.UNAVAILABLE,
        "is not here",
    ),
    "the weights of nobody": (life_of(number=9, first_rank=1), Code.UNAVAILABLE, "the weights of rank 1, which is not"),
    "none": (life_of(number=0), Code.INVALID_ARGUMENT, "no group can be in life 0"),
}


async def test_a_life_that_cannot_be_is_refused_and_changes_nothing():
    flags = group_of(2, NOTHING_KEPT)
    async with running_trainer(*flags) as near, running_trainer(*flags) as far, RawPeer(far.address) as peer:
        configs = [member_of_two(rank, near, far, size=2, more=[SHARD]) for rank in range(2)]
        first = asyncio.create_task(run_training(configs[0]))
        members = Members(far, peer)
        await until_linked(members, first)
        for case, (beginning, code, sentence) in LIVES.items():
            found, said = await members.begin(0, beginning)
            assert found is code, (case, said)
            assert sentence in said, case
        (state,) = await trained(configs[1:])
        await first
    assert_same_bits(group_state(configs), state)


async def test_a_member_that_has_said_its_last_step_cannot_stay_longer():
    flags = group_of(2, NOTHING_KEPT)
    async with running_trainer(*flags) as server, RawPeer(server.address) as peer:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        leaving = asyncio.create_task(run_training(configs[0]))
        members = Members(server, peer)
        await until_linked(members, leaving)
        for _ in range(2):  # the second is a repetition
            assert (await members.leave(0, 2))[0] is Code.OK
        found, said = await members.leave(0, 4)
        assert found is Code.INVALID_ARGUMENT
        assert "has said before step 3; it can only leave earlier" in said
        (state,) = await trained(configs[1:])
        with pytest.raises(
            RefusedError, match=r"of step 3; the group is at step \d+, and the rank takes no part in that"
        ):
            await leaving
    assert_same_bits(group_state(configs, lambda step, _: (0, 1) if step < 3 else (1,)), state)


ROOM = 'groups=[{name="line", size=2, most=3, checkpoint_steps=2}]'


async def test_a_newcomer_that_joins_in_another_order_is_told_so_and_the_group_ends_without_it():
    async with running_trainer(ROOM, ACCEPTING, NOTHING_KEPT) as server, RawPeer(server.address) as peer:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        first = asyncio.create_task(run_training(configs[0]))
        members = Members(server, peer)
        await until_linked(members, first)
        seat = pb.GroupSeat()
        seat.CopyFrom(members.group.seats.sessions[0].request.group)
        seat.rank = 2
        request = pb.OpenSessionRequest()
        request.CopyFrom(members.group.seats.sessions[0].request)
        request.group.CopyFrom(seat)
        end = await peer.unary("OpenSession", request.SerializeToString())
        session = pb.OpenSessionResponse.FromString(end.responses[0]).session_id
        assert (await members.leave(2, 3))[0] is Code.ABORTED, "no agent has joined the session"
        await peer.join(session)
        life = members.group.life
        said = [
            await members.leave(2, 3),  # has not begun
            await members.join(2, life, 1),  # has not asked
            await members.begin(2, placed_at(0)),
            await members.leave(2, 3),  # is no member
            await members.join(2, life + 1, 1),
            await members.join(2, life, 5),
        ]
        refused = Code.FAILED_PRECONDITION
        codes = [refused, refused, Code.OK, refused, Code.UNAVAILABLE, Code.INVALID_ARGUMENT]
        assert [code for code, _ in said] == codes
        assert "nobody joins after step 2" in said[-1][1]
        await peer.close_session(session)
        (state,) = await trained(configs[1:])
        await first
    assert_same_bits(group_state(configs), state)


async def test_a_newcomer_that_asks_again_and_again_is_promised_no_place_until_its_group_has_gone_on(monkeypatch):
    monkeypatch.setattr(newcomers, "FIRST_REST", 10_000)  # the promise of this one is gone in a moment
    async with running_trainer(ROOM, ACCEPTING, NOTHING_KEPT) as server, RawPeer(server.address) as peer:
        configs = [member(rank, server, size=2, more=[SHARD]) for rank in range(2)]
        first = asyncio.create_task(run_training(configs[0]))
        members = Members(server, peer)
        await until_linked(members, first)
        request = pb.OpenSessionRequest()
        request.CopyFrom(members.group.seats.sessions[0].request)
        request.group.rank = 2
        for code in (Code.OK, Code.UNAVAILABLE, Code.UNAVAILABLE):
            end = await peer.unary("OpenSession", request.SerializeToString())
            session = pb.OpenSessionResponse.FromString(end.responses[0]).session_id
            await peer.join(session)
            found, said = await members.begin(2, placed_at(0))
            assert found is code, said
            assert code is Code.OK or "has waited for a newcomer of 'this caller'" in said
            await peer.close_session(session)
        (state,) = await trained(configs[1:])
        await first
    assert_same_bits(group_state(configs), state)


async def test_who_is_no_subject_of_a_group_neither_opens_nor_steals_a_seat(tmp_path):
    door = Doorkeeper(tmp_path)
    door.write_tokens(ALL)
    group = 'groups=[{name="line", size=2, subjects=["ours"]}]'
    async with running_trainer(*door.flags, group, ACCEPTING, NOTHING_KEPT) as server:
        request = open_request(group=pb.GroupSeat(name="line", rank=0, size=2, steps=6))
        path = path_of("OpenSession")
        theirs = await door.friend("theirs").code(server.address, path, request.SerializeToString())
        assert theirs is Code.PERMISSION_DENIED
        assert not server.service.sessions.built
        assert not server.service.groups.all[0].seats.sessions
