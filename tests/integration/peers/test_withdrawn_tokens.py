"""Tokens are withdrawn, replaced and damaged while a trainer serves: who is out, who stays, and what everybody is told."""

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.net.relay import Fault, Relay
from isthmus import run_training
from shared.errors import ExitCode
from shared.transport.auth.gate import LOOK_SECONDS
from shared.transport.auth.scopes import AN_AGENTS, Scope
from shared.transport.auth.tokens import make_token
from shared.transport.rpc.status import retry_after_seconds
from shared.wire.isthmus.v1 import control_pb2 as control
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.commands import MLP, spoken
from tests.support.peers.strangers import CONTROL, path_of
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, agent_process, edge_config, running_trainer, trainer_process
from tests.support.wire import SERVICE, joining, open_request, opening

pytestmark = pytest.mark.usefixtures("one_thread")

Code = grpc.StatusCode
State = health_pb2.HealthCheckResponse
STEPS = [*MLP, "training.max_steps=40"]


class Book:
    """A trainer's file of tokens. It is replaced in one go, as an operator should."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "tokens.toml"
        self.flag = f"auth.tokens={self.path}"
        self.tokens: dict[str, str] = {}

    def write(self, *subjects: str) -> None:
        """Each of these has a new token, and no other subject has one."""
        made = {
            subject: make_token(subject, list(Scope) if subject == "operator" else AN_AGENTS) for subject in subjects
        }
        self.put("# tokens\n" + "\n".join(table for _, table in made.values()))
        self.tokens = {subject: token for subject, (token, _) in made.items()}

    def put(self, text: str) -> None:
        scratch = self._folder / "scratch"
        scratch.write_text(text)
        scratch.replace(self.path)

    def header(self, subject: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[subject]}"),)


@pytest.fixture
def book(tmp_path):
    book = Book(tmp_path)
    book.write("ours", "theirs")
    return book


@asynccontextmanager
async def channel_to(address):
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


async def opened(channel, header):
    answer = await channel.unary_unary(path_of("OpenSession"))(open_request().SerializeToString(), metadata=header)
    return pb.OpenSessionResponse.FromString(answer).session_id


async def attached(channel, header):
    """A link that is there."""
    session = await opened(channel, header)
    await channel.unary_unary(path_of("JoinSession"))(joining(session), metadata=header)
    call = channel.stream_stream(path_of("Link"))(metadata=header)
    await call.write(opening(session))
    for _ in range(2):  # that it is open, and where the trainer stands
        assert await call.read() is not grpc.aio.EOF
    return call


async def watching(channel, header):
    """A stream of an operator's view that is there."""
    request = control.TrainerControlServiceWatchRequest()
    call = channel.unary_stream(f"/{CONTROL}/Watch")(request.SerializeToString(), metadata=header)
    assert await call.read() is not grpc.aio.EOF
    return call


async def ending_of(call):
    """The status of a stream that the trainer ends. gRPC tells it once all messages before it are read."""
    async with asyncio.timeout(60):
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code(), await call.details()


async def code_of(channel, header, method="CloseSession"):
    try:
        await channel.unary_unary(path_of(method))(b"", metadata=header)
    except grpc.aio.AioRpcError as ended:
        return ended.code()
    return Code.OK


async def health(channel, service):
    return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))).status


async def until(condition):
    """Ask again until it holds: the awaited change happens in the trainer without a sign."""
    async with asyncio.timeout(60):
        while not await condition():
            pass


async def test_a_subject_that_is_removed_is_out_with_its_streams_and_nobody_else_is(book):
    assert 2 * LOOK_SECONDS <= 0.5, "twice looked at, and ended, within a second"
    async with running_trainer(book.flag) as server, channel_to(server.address) as channel:
        calls = [await attached(channel, book.header("ours")), await watching(channel, book.header("ours"))]
        other = await attached(channel, book.header("theirs"))
        theirs, kept = book.header("theirs"), book.tokens["theirs"]
        book.write("theirs")
        book.tokens["theirs"] = kept
        for call in calls:
            code, details = await ending_of(call)
            assert code is Code.UNAUTHENTICATED
            assert "withdrawn the tokens of 'ours'" in details
        assert not other.done(), "its subject has another token, which its next call needs"
        assert await code_of(channel, theirs) is Code.UNAUTHENTICATED
        other.cancel()


async def test_a_file_that_lacks_a_token_for_a_moment_ends_no_stream(book):
    async with running_trainer(book.flag) as server, channel_to(server.address) as channel:
        call = await attached(channel, book.header("ours"))
        whole = book.path.read_text()
        book.put("# being written\n")
        assert await code_of(channel, book.header("ours")) is Code.UNAUTHENTICATED
        book.put(whole)
        await until(lambda: _is(channel, book.header("ours"), Code.OK))
        assert not call.done()
        call.cancel()


async def _is(channel, header, code):
    return await code_of(channel, header) is code


async def an_edge_is_attached(channel, header):
    request = control.TrainerControlServiceWatchRequest()
    call = channel.unary_stream(f"/{CONTROL}/Watch")(request.SerializeToString(), metadata=header)
    async for answer in call:
        sessions = control.TrainerControlServiceWatchResponse.FromString(answer).status.sessions
        if [session.state for session in sessions] == [control.TRAINER_SESSION_STATE_ATTACHED]:
            break
    call.cancel()


async def test_an_agent_whose_subject_is_removed_ends_with_one_sentence_and_does_not_come_again(book, tmp_path):
    book.write("ours", "operator")
    with trainer_process(book.flag) as (_, address):
        token = tmp_path / "token"
        token.touch(mode=0o600)
        token.write_text(book.tokens["ours"])
        # With the time to give up that users have: a withdrawn token must end the run, however long that is.
        flags = [flag for flag in MLP if not flag.startswith("trainer.give_up")]
        flags = [*flags, "training.epochs=100000", f"trainer.address={address}", f"trainer.token_file={token}"]
        with agent_process(*flags) as (agent, said):
            async with channel_to(address) as channel:
                await an_edge_is_attached(channel, book.header("operator"))
            book.write("theirs")
            assert await asyncio.to_thread(agent.wait, 240) == ExitCode.ACCESS
            said.join()
            sentences = [said_so for line in said.last_lines if (said_so := spoken(line)).startswith("edge-agent: ")]
            assert len(sentences) == 1, said
            assert "does not know this worker: the operator has withdrawn the tokens of 'ours'" in sentences[0]


BROKEN = {
    "a typo": lambda path: path.write_text(path.read_text() + "\n[[token]\n"),
    "lost": lambda path: path.unlink(),
    "empty": lambda path: path.write_text(""),
    "no file": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.first_case
@pytest.mark.parametrize("breaks", BROKEN.values(), ids=BROKEN)
async def test_a_file_that_cannot_be_read_admits_nobody_new_and_keeps_who_is_there(book, breaks):
    async with running_trainer(book.flag) as server, channel_to(server.address) as channel:
        call = await attached(channel, book.header("ours"))
        whole = book.path.read_text()
        breaks(book.path)
        for header in (book.header("theirs"), (("authorization", "Bearer x"),)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(path_of("CloseSession"))(b"", metadata=header)
            assert refused.value.code() is Code.UNAVAILABLE, "a good token may be in what cannot be read"
            assert "nobody new is admitted" in refused.value.details()
            assert str(book.path) not in refused.value.details()
            assert retry_after_seconds(refused.value) > 0
        assert await code_of(channel, book.header("ours")) is Code.OK, "it is there"
        await until(lambda: _health_is(channel, SERVICE, State.NOT_SERVING))
        assert await health(channel, "") == State.SERVING, "a probe that kills would end those who are there"
        assert server.metrics.registry.get_sample_value("isthmus_token_file_broken") == 1
        assert not call.done()
        if book.path.is_dir():
            book.path.rmdir()
        book.put(whole)
        await until(lambda: _is(channel, book.header("theirs"), Code.OK))
        await until(lambda: _health_is(channel, SERVICE, State.SERVING))
        assert server.metrics.registry.get_sample_value("isthmus_token_file_broken") == 0
        call.cancel()


async def _health_is(channel, service, state):
    return await health(channel, service) == state


@pytest.mark.parametrize("breaks", [BROKEN["a typo"], BROKEN["lost"]], ids=["a typo", "lost"])
async def test_a_trainer_that_starts_with_a_broken_file_admits_nobody_until_it_is_mended(book, breaks):
    whole = book.path.read_text()
    breaks(book.path)
    with trainer_process(book.flag) as (_, address):
        async with channel_to(address) as channel:
            await until(lambda: _health_is(channel, SERVICE, State.NOT_SERVING))
            assert await code_of(channel, book.header("ours")) is Code.UNAVAILABLE
            book.put(whole)
            await until(lambda: _is(channel, book.header("ours"), Code.OK))
            await until(lambda: _health_is(channel, SERVICE, State.SERVING))


def _open_to_all(path):
    path.chmod(0o644)


DAMAGES = {
    "mode 644": _open_to_all,
    "empty": lambda path: path.write_text(""),
    "gone": lambda path: path.unlink(),
    "two words": lambda path: path.write_text("no token"),
}


@pytest.mark.first_case
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_bad_token_file_on_the_edge_ends_no_run_that_goes_on(book, tmp_path, edge_metrics, damage):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(book.tokens["ours"])
    seen = []

    async with running_trainer(book.flag) as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def on_progress(progress):
                if progress.steps == 10:
                    damage(token)
                    relay.inject(Fault.DROP)  # the next stream needs a token
                if progress.steps == 30:
                    seen.append(edge_metrics[0].registry.get_sample_value("isthmus_token_file_broken"))

            # Only a link that is lost makes the agent use its token again; without a time to wait it would end there.
            flags = [*STEPS, "trainer.give_up_seconds=60", f"trainer.token_file={token}"]
            result = await run_training(edge_config(*flags, f"trainer.address={relay.address}"), Listening(on_progress))
    assert_same_bits(plain_state(edge_config(*STEPS)), result.module.state_dict())
    assert seen == [1]


async def test_a_new_token_on_the_edge_is_used_from_the_next_call_once_its_file_is_closed_to_others(book, tmp_path):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(book.tokens["ours"])

    async with running_trainer(book.flag) as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def on_progress(progress):
                if progress.steps == 10:
                    book.write("ours")
                    scratch = tmp_path / "next"
                    scratch.write_text(book.tokens["ours"])
                    scratch.chmod(0o644)
                    scratch.replace(token)
                    token.chmod(0o600)
                    relay.inject(Fault.DROP)

            flags = [*STEPS, "trainer.give_up_seconds=60", f"trainer.token_file={token}"]
            result = await run_training(edge_config(*flags, f"trainer.address={relay.address}"), Listening(on_progress))
    assert_same_bits(plain_state(edge_config(*STEPS)), result.module.state_dict())


async def test_what_is_wrong_about_who_one_is_is_limited_by_address_before_it_is_looked_at(book):
    async with (
        running_trainer(book.flag, "server.max_calls_per_second=1") as server,
        channel_to(server.address) as channel,
    ):
        wrong = (("authorization", "Bearer wrong"),)
        codes = [await code_of(channel, wrong) for _ in range(400)]
        burst = codes.count(Code.UNAUTHENTICATED)
        assert 10 <= burst < 100, "ten at once, and one for each second that this takes"
        assert codes.count(Code.RESOURCE_EXHAUSTED) == 400 - burst


async def test_a_token_without_the_scope_is_limited_as_any_caller(book):
    made, table = make_token("looks", [Scope.READ])
    book.put(table)
    async with (
        running_trainer(book.flag, "server.max_calls_per_second=0.1") as server,
        channel_to(server.address) as channel,
    ):
        header = (("authorization", f"Bearer {made}"),)
        assert await code_of(channel, header, "OpenSession") is Code.PERMISSION_DENIED
        assert await code_of(channel, header, "OpenSession") is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("port", ["address", "health_address"])
async def test_a_probe_has_a_place_whatever_others_hold_open(book, asks, port):
    flags = ["server.health_listen=127.0.0.1:0", "server.max_calls_per_second=0.1", *([book.flag] if asks else [])]
    async with running_trainer(*flags) as server:
        address = getattr(server, port)
        async with channel_to(address) as channel, channel_to(address) as second, channel_to(address) as third:
            # Begun and never said: on the wire they are calls without a message.
            half_open = [
                each.stream_unary(method)()
                for each in (channel, second, third)
                for method in ("/grpc.health.v1.Health/Check", path_of("OpenSession"))
                for _ in range(60)
            ]
            watches = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(5)]
            await asyncio.gather(*(call.initial_metadata() for call in watches), return_exceptions=True)
            async with channel_to(address) as probe:
                for _ in range(40):
                    assert await health(probe, "") == State.SERVING
            for call in [*half_open, *watches]:
                call.cancel()
