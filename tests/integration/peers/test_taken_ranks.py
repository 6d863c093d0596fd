"""A rank that has begun belongs to its subject: nobody else of the group takes it while its member is away."""

import asyncio
from contextlib import ExitStack, asynccontextmanager, suppress

import grpc
import pytest
from safetensors.torch import load_file

from isthmus import run_training
from shared.errors import ExitCode, RefusedError, UnreachableError
from shared.transport.auth.scopes import AN_AGENTS
from shared.transport.auth.tokens import make_token
from shared.transport.stream.packets import serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.group_flags import SHARD, group_of, member, member_flags
from tests.support.group_members import group_state
from tests.support.plain import assert_same_bits
from tests.support.running import GIVE_UP_AT_ONCE, agent_process, edge_config, heard_trainer_process, running_trainer
from tests.support.running_group import SLOWLY
from tests.support.wire import RawPeer, block_packets

pytestmark = pytest.mark.usefixtures("one_thread")
SUBJECTS = ("ours", "second", "theirs")


class Tokens:
    """The tokens of some subjects, of whom the trainer has the hashes."""

    def __init__(self, folder):
        self._folder = folder
        made = {subject: make_token(subject, AN_AGENTS) for subject in SUBJECTS}
        (folder / "tokens.toml").write_text("\n".join(table for _, table in made.values()))
        self.secrets = {subject: token for subject, (token, _) in made.items()}
        for subject, token in self.secrets.items():
            path = folder / f"{subject}.token"
            path.touch(mode=0o600)
            path.write_text(token)

    @property
    def of_trainer(self):
        return f"auth.tokens={self._folder / 'tokens.toml'}"

    def of(self, subject):
        return f"trainer.token_file={self._folder / f'{subject}.token'}"

    def member(self, subject, rank, server, *more):
        return member(rank, server, size=2, more=[SHARD, "training.max_steps=12", self.of(subject), *more])


async def until(group, step, *training):
    """Wait until a group is at a step."""
    while group.step < step:
        await asyncio.wait(training, timeout=0.01)
        assert not any(each.done() for each in training)


@asynccontextmanager
async def one_away(tmp_path):
    """Have two members train, and the first go away in the middle of it; the body may do what it wants meanwhile."""
    tokens = Tokens(tmp_path)
    flags = group_of(2, f"checkpoints.location={tmp_path / 'kept'}", tokens.of_trainer)
    async with running_trainer(*flags) as server:
        (group,) = server.service.groups.all
        first = tokens.member("ours", 0, server, *SLOWLY[0])
        training = [asyncio.create_task(run_training(first))]
        training.append(asyncio.create_task(run_training(tokens.member("second", 1, server))))
        await until(group, 3, *training)
        away = training.pop(0)
        away.cancel()
        with suppress(asyncio.CancelledError):
            await away
        yield tokens, server, group
        states = await asyncio.gather(run_training(first), *training)
        plain = [tokens.member("ours", rank, server) for rank in range(2)]
    for result in states:
        assert_same_bits(group_state(plain), result.module.state_dict())


@pytest.mark.slow
def test_who_comes_in_the_moment_after_a_member_was_killed_does_not_get_its_rank(tmp_path):
    tokens, flags = Tokens(tmp_path), group_of(2, f"checkpoints.location={tmp_path / 'kept'}", "compute.threads=1")
    with heard_trainer_process(*flags, tokens.of_trainer) as (_, address, said), ExitStack() as stack:

        def begun(subject, rank, name):
            more = [SHARD, "training.max_steps=40", *SLOWLY[rank], tokens.of(subject), f"trainer.address={address}"]
            own = [*member_flags(rank, size=2, more=more), "compute.threads=1", "control.listen=none"]
            return stack.enter_context(agent_process(*own, output=tmp_path / name)), own

        members = [begun(subject, rank, f"member-{rank}")[0] for rank, subject in enumerate(SUBJECTS[:2])]
        said.first_event("checkpoint of a group", least_step=4)
        members[0][0].kill()
        members[0][0].wait()
        (stranger, last), _ = begun("theirs", 0, "stranger")
        assert stranger.wait(60) == ExitCode.REFUSED
        assert "rank 0 of group 'line' belongs to another subject" in str(last)
        members[0], _ = begun("ours", 0, "member-0")
        for process, last in members:
            assert process.wait(120) == 0, last
        more = [SHARD, "training.max_steps=40"]
        expected = group_state([edge_config(*member_flags(rank, size=2, more=more)) for rank in range(2)])
        for rank in range(2):
            assert_same_bits(expected, load_file(tmp_path / f"member-{rank}" / "model.safetensors"))


async def test_nobody_else_takes_the_rank_of_a_member_that_is_away(tmp_path):
    async with one_away(tmp_path) as (tokens, server, _):
        with pytest.raises(RefusedError, match="rank 0 of group 'line' belongs to another subject") as refusal:
            await run_training(tokens.member("theirs", 0, server))
        assert refusal.value.exit_code is ExitCode.REFUSED
        assert "cloud-trainer free line 0" in str(refusal.value)


async def test_a_rank_that_an_operator_frees_is_the_next_ones(tmp_path):
    tokens = Tokens(tmp_path)
    async with running_trainer(*group_of(2), tokens.of_trainer) as server:
        (group,) = server.service.groups.all
        first = asyncio.create_task(run_training(tokens.member("ours", 0, server)))
        while not group.seats.attached:
            await asyncio.wait({first}, timeout=0.01)
        with pytest.raises(UnreachableError, match=r"taken by a member that is linked now .*copy of the other's disk"):
            await run_training(tokens.member("ours", 0, server, GIVE_UP_AT_ONCE))
        with pytest.raises(
            UnreachableError, match="rank 0 of group 'line' is taken by a member that is linked now; give"
        ):
            await run_training(tokens.member("theirs", 0, server, GIVE_UP_AT_ONCE))
        assert (group.owner(0), group.owner(1)) == ("ours", None)
        assert await group.free(0)
        assert not await group.free(0)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        members = [tokens.member("theirs", 0, server), tokens.member("second", 1, server)]
        await asyncio.gather(*map(run_training, members))
        assert [group.owner(rank) for rank in range(2)] == [None, None], "the training has ended"


@pytest.mark.slow
async def test_a_rank_is_its_subjects_also_after_its_trainer_has_begun_again(tmp_path):
    tokens = Tokens(tmp_path)
    flags = group_of(2, f"checkpoints.location={tmp_path / 'kept'}", tokens.of_trainer)
    async with running_trainer(*flags) as server:
        (group,) = server.service.groups.all
        training = [
            asyncio.create_task(run_training(tokens.member(subject, rank, server, *SLOWLY[0])))
            for rank, subject in enumerate(SUBJECTS[:2])
        ]
        await until(group, 3, *training)
        for each in training:
            each.cancel()
        await asyncio.gather(*training, return_exceptions=True)
    async with running_trainer(*flags) as server:
        for rank in range(2):
            with pytest.raises(RefusedError, match=f"rank {rank} of group 'line' belongs to another subject"):
                await run_training(tokens.member("theirs", rank, server))
        members = [tokens.member(subject, rank, server) for rank, subject in enumerate(SUBJECTS[:2])]
        states = await asyncio.gather(*map(run_training, members))
    for result in states:
        assert_same_bits(group_state(members), result.module.state_dict())


async def test_another_device_of_the_same_subject_waits_until_the_rank_is_free(tmp_path):
    tokens = Tokens(tmp_path)
    async with running_trainer(*group_of(2), tokens.of_trainer) as server:
        (group,) = server.service.groups.all
        training = [
            asyncio.create_task(run_training(tokens.member(subject, rank, server, *SLOWLY[0])))
            for rank, subject in enumerate(SUBJECTS[:2])
        ]
        await until(group, 2, *training)
        again = asyncio.create_task(run_training(tokens.member("ours", 0, server)))
        await until(group, 4, *training, again)
        training[0].cancel()
        states = await asyncio.gather(training[1], again)
        members = [tokens.member("ours", rank, server) for rank in range(2)]
    for result in states:
        assert_same_bits(group_state(members), result.module.state_dict())


async def test_no_call_of_another_subject_reaches_a_members_session(tmp_path):
    async with one_away(tmp_path) as (tokens, server, group):
        session = group.seats.sessions[1]
        named = {"session_id": session.id, "fence": pb.Fence(session_term=session.attachment.term)}
        beginning = pb.Beginning(group=pb.GroupBeginning())
        calls = {
            "JoinSession": pb.JoinSessionRequest(
                session_id=session.id, session_term=99, protocol_version=PROTOCOL_VERSION
            ),
            "RestoreWorker": pb.RestoreWorkerRequest(**named, beginning=beginning),
            "LeaveGroup": pb.LeaveGroupRequest(**named, last_step=group.step + 2),
            "JoinGroup": pb.JoinGroupRequest(**named, life=group.life, first_step=group.step),
            "CommitPlacement": pb.CommitPlacementRequest(**named, placement=session.request.placement),
            "GetSession": pb.GetSessionRequest(session_id=session.id),
            "CloseSession": pb.CloseSessionRequest(**named),
            "DownloadBlock": pb.DownloadBlockRequest(session_id=session.id),
        }
        async with RawPeer(server.address, token=tokens.secrets["theirs"]) as peer:
            for name, request in calls.items():
                assert (await peer.unary(name, request.SerializeToString())).code is grpc.StatusCode.NOT_FOUND, name
            link = await peer.linked(session.id, [], term=session.attachment.term)
            assert link.code is grpc.StatusCode.NOT_FOUND
            upload = serialize(block_packets(session.id, 1, b"state")[0])
            assert (await peer.streamed("UploadBlock", [upload])).code is grpc.StatusCode.NOT_FOUND
        assert group.seats.sessions[1] is session
