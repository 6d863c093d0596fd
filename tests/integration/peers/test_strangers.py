"""Every RPC against everybody who must not call it: each is refused, and docs/security.md says how.

The table in the document is the one of this file, so it cannot go stale: a method that is added is answered by it or fails.
"""

import asyncio
import io

import grpc
import pytest

from benchmarks.net.relay import Fault, Relay
from cloud_trainer.control.certificates import make_authority
from cloud_trainer.rpc.access import SCOPES
from isthmus import run_training
from shared.errors import ExitCode
from shared.telemetry.logs import configure_logs
from shared.transport.auth.scopes import Scope
from shared.transport.rpc.health import serving
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.conftest import ROOT
from tests.support.commands import MLP, agent_fails
from tests.support.peers.strangers import (
    ALL,
    GROUP,
    METHODS,
    SERVER,
    Doorkeeper,
    Peer,
    message,
    names_a_session,
    path_of,
)
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, running_trainer, trainer_process
from tests.support.wire import open_request

pytestmark = pytest.mark.usefixtures("one_thread")

Code = grpc.StatusCode
pytestmark = pytest.mark.usefixtures("one_thread")
DOCUMENT = ROOT / "docs" / "security.md"
THREE_STEPS = [*MLP, "training.max_steps=3"]
NO_CONNECTION, ANSWERED, NAMES_NONE = "no connection", "answered", "names none"
ANSWERS = {
    "no certificate": NO_CONNECTION,
    "wrong CA": NO_CONNECTION,
    "expired certificate": NO_CONNECTION,
    "no token": "UNAUTHENTICATED",
    "wrong scope": "PERMISSION_DENIED",
    "other session's id": "NOT_FOUND",
}
"""Statuses that a stranger of each kind is told."""


@pytest.fixture
def door(tmp_path):
    store = Doorkeeper(tmp_path)
    store.write_tokens(ALL)
    return store


async def opened(address, peer):
    """The id of a new session of that peer."""
    async with peer.channel(address) as channel:
        metadata = None if peer.token is None else (("authorization", f"Bearer {peer.token}"),)
        answer = await channel.unary_unary(path_of("OpenSession"))(
            open_request().SerializeToString(), metadata=metadata
        )
        return pb.OpenSessionResponse.FromString(answer).session_id


def shown(code):
    if code is Code.UNAVAILABLE:
        return NO_CONNECTION
    return ANSWERED if code is Code.OK else code.name


async def observed(door, address):
    """The table: how each method ends for each kind of stranger."""
    session = await opened(address, door.friend("ours"))
    table = {}
    for method in METHODS:
        data = message(method, session)
        row = {kind: await peer.code(address, method, data) for kind, peer in door.strangers(method).items()}
        cells = {kind: shown(code) for kind, code in row.items()}
        named = names_a_session(method)
        cells["other session's id"] = (
            shown(await door.friend("theirs").code(address, method, data)) if named else NAMES_NONE
        )
        table[method] = cells
    assert await door.friend("ours").code(address, path_of("GetSession"), message("GetSession", session)) is Code.OK, (
        "the session is as it was"
    )
    return table


def answer(method, kind):
    """Return the documented answer to a call of a stranger."""
    if method.endswith("Health/Check") and kind in ("no token", "wrong scope"):
        return ANSWERED  # load balancers have no token
    if kind == "other session's id" and not names_a_session(method):
        return NAMES_NONE
    return ANSWERS[kind]


def as_markdown():
    """A row for all kinds of strangers that are told the same."""
    kinds = {}
    for kind, told in ANSWERS.items():
        kinds.setdefault(told, []).append(kind)
    rows = [f"| {', '.join(alike)} | {told} |" for told, alike in kinds.items()]
    return "\n".join(["| the caller has | the answer is |", "|---|---|", *rows])


def test_every_method_has_a_scope_and_every_scope_a_method():
    assert SCOPES.keys() == METHODS.keys(), "cloud_trainer/rpc/access.py says who may call what"


async def test_every_call_of_every_stranger_is_refused_as_it_should_be(door):
    async with running_trainer(*door.flags, "server.max_sessions=40") as server:
        table = await observed(door, server.address)
    for method, cells in table.items():
        assert cells == {kind: answer(method, kind) for kind in ANSWERS}, method


def test_the_document_shows_every_answer():
    assert as_markdown() in DOCUMENT.read_text(encoding="utf-8"), f"docs/security.md must say:\n{as_markdown()}"


async def test_a_friend_gets_through_to_every_method(door):
    group = f'groups=[{{name="{GROUP}", size=1}}]'
    async with running_trainer(*door.flags, "server.max_sessions=40", group) as server:
        for method in METHODS:
            session = await opened(server.address, door.friend())
            code = await door.friend().code(server.address, method, message(method, session))
            assert code not in (Code.UNAVAILABLE, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.NOT_FOUND), method
            assert (code is Code.UNIMPLEMENTED) == method.endswith("/List"), "which grpcio's health service has not yet"


async def test_a_method_that_is_not_there_is_told_so_and_nothing_else(door):
    async with running_trainer(*door.flags) as server:
        stranger = Peer(door.credentials(), None)
        assert await stranger.code(server.address, path_of("Steal"), b"") is Code.UNIMPLEMENTED


@pytest.mark.parametrize(
    "values", [["Bearer "], ["Basic abc"], ["Bearer x", "Bearer y"], ["Bearer " + "x" * 4000], ["bearer"]]
)
async def test_a_header_that_is_no_token(door, values):
    async with (
        running_trainer(*door.flags) as server,
        Peer(door.credentials(), None).channel(server.address) as channel,
    ):
        call = channel.unary_unary(path_of("GetSession"))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call(b"", metadata=[("authorization", value) for value in values])
        assert ended.value.code() is Code.UNAUTHENTICATED


async def test_a_probe_has_a_port_of_its_own_and_nothing_else_answers_there(door):
    async with running_trainer(*door.flags, "server.health_listen=127.0.0.1:0") as server:
        assert await asyncio.to_thread(serving, server.health_address)
        assert not await asyncio.to_thread(serving, server.address), "that one wants a certificate"
        probe = Peer(None, door.tokens["ours"])
        for method in METHODS:
            if not method.startswith("/grpc.health."):
                assert await probe.code(server.health_address, method, b"") is Code.UNIMPLEMENTED


async def test_without_tokens_a_certificate_says_whose_a_session_is(door):
    async with running_trainer(*door.tls_flags) as server:
        one, other = (Peer(door.credentials(name=name), None) for name in ("pi-7", "pi-8"))
        session = await opened(server.address, one)
        data = message("GetSession", session)
        assert await one.code(server.address, path_of("GetSession"), data) is Code.OK
        assert await other.code(server.address, path_of("GetSession"), data) is Code.NOT_FOUND
        assert await other.code(server.address, path_of("CloseSession"), data) is Code.NOT_FOUND
        assert await one.code(server.address, path_of("GetSession"), data) is Code.OK


async def test_a_session_can_be_used_with_another_token_of_its_subject(door):
    async with running_trainer(*door.flags) as server:
        session = await opened(server.address, door.friend("ours"))
        door.write_tokens(ALL)  # all tokens are new, and the old ones are withdrawn
        code = await door.friend("ours").code(server.address, path_of("GetSession"), message("GetSession", session))
        assert code is Code.OK


async def test_a_token_that_is_withdrawn_counts_no_longer_on_a_connection_that_is_there(door):
    async with running_trainer(*door.flags) as server, door.friend().channel(server.address) as channel:
        call = channel.unary_unary(path_of("CloseSession"))
        metadata = (("authorization", f"Bearer {door.tokens['ours']}"),)
        await call(b"", metadata=metadata)
        door.write_tokens({"theirs": list(Scope)})
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call(b"", metadata=metadata)
        assert ended.value.code() is Code.UNAUTHENTICATED


async def test_certificates_are_rotated_without_a_restart_and_connections_stay(door):
    async with running_trainer(*door.flags) as server, door.friend().channel(server.address) as before:
        method = path_of("CloseSession")
        metadata = (("authorization", f"Bearer {door.tokens['ours']}"),)
        await before.unary_unary(method)(b"", metadata=metadata)
        successor = make_authority("the next", 30)
        door.renew(successor)
        old_trust, new_trust = door.credentials(), door.credentials(trusts=successor)
        assert await Peer(new_trust, door.tokens["ours"]).code(server.address, method, b"") is Code.OK
        assert await Peer(old_trust, door.tokens["ours"]).code(server.address, method, b"") is Code.UNAVAILABLE
        await before.unary_unary(method)(b"", metadata=metadata)


@pytest.mark.slow
async def test_who_connects_many_times_at_once_does_not_end_a_trainer_not_even_while_certificates_change(
    door, tmp_path
):
    with trainer_process(*door.flags) as (process, address):
        host, port = address.split(":")
        for burst in range(200):
            if burst % 20 == 0:
                (tmp_path / "ca.pem").touch()  # read again, as a change is
            knocking = [asyncio.open_connection(host, int(port)) for _ in range(20)]
            for _, writer in await asyncio.gather(*knocking):
                writer.close()
        assert await door.friend().code(address, path_of("CloseSession"), b"") is Code.OK
        assert process.poll() is None


async def test_a_key_without_its_certificate_changes_nothing(door, tmp_path):
    async with running_trainer(*door.flags) as server:
        good = {name: (tmp_path / name).read_bytes() for name in ("trainer.pem", "trainer.key")}
        door.renew(door.authority)
        (tmp_path / "trainer.pem").write_bytes(good["trainer.pem"])  # half of a rotation
        assert await door.friend().code(server.address, path_of("CloseSession"), b"") is Code.OK
        (tmp_path / "trainer.pem").write_text("no certificate at all")
        assert await door.friend().code(server.address, path_of("CloseSession"), b"") is Code.OK


def agent_flags(door, tmp_path, token):
    """An agent with a certificate and this token."""
    door.credentials()
    place = tmp_path / "token"
    place.touch(mode=0o600)
    place.write_text(token + "\n")
    return [
        f"tls.ca={tmp_path / 'ca.pem'}",
        f"tls.certificate={tmp_path / 'edge.pem'}",
        f"tls.key={tmp_path / 'edge.key'}",
        f"trainer.token_file={place}",
    ]


async def test_a_training_behind_all_of_this_ends_with_the_same_bits(door, tmp_path):
    flags = agent_flags(door, tmp_path, door.tokens["ours"])
    async with running_trainer(*door.flags) as server:
        result = await run_training(edge_config(*THREE_STEPS, f"trainer.address={server.address}", *flags))
    assert_same_bits(plain_state(edge_config(*THREE_STEPS)), result.module.state_dict())


async def test_an_agent_goes_on_when_the_authority_and_every_certificate_are_rotated_and_its_link_is_lost(
    door, tmp_path
):
    flags = [*MLP, "training.max_steps=12", "trainer.give_up_seconds=60"]
    access = agent_flags(door, tmp_path, door.tokens["ours"])
    old = door.friend()
    async with running_trainer(*door.flags) as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def on_progress(progress):
                if progress.steps in (4, 8):
                    door.rotate()
                    relay.inject(Fault.DROP)

            config = edge_config(*flags, f"trainer.address={relay.address}", *access)
            result = await run_training(config, Listening(on_progress))
        assert await old.code(server.address, path_of("CloseSession"), b"") is Code.UNAVAILABLE, "it was good before"
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


@pytest.fixture
def log():
    """Everything that this process logs, down to the least."""
    stream = io.StringIO()
    configure_logs("debug", "json", stream)
    yield stream
    configure_logs()


@pytest.mark.slow
async def test_what_the_agent_says_when_it_is_a_stranger_and_that_no_token_is_written_anywhere(door, tmp_path, log):
    secret = "s3cret-" * 5
    somebody = make_authority("somebody's", 1)
    somebody.write(tmp_path / "other.pem", tmp_path / "other.key")
    async with running_trainer(*door.flags) as server:

        async def fails(code, *says, flags):
            return await asyncio.to_thread(
                agent_fails, code, *says, flags=[*flags, "log.level=debug"], trainer=server.address
            )

        flags = agent_flags(door, tmp_path, secret)
        said = await fails(ExitCode.ACCESS, "does not know this worker: the token is not known here", flags=flags)
        wrong_ca = [*flags[1:], f"tls.ca={tmp_path / 'other.pem'}"]
        said += await fails(ExitCode.ACCESS, "no secure connection to the trainer", "tls.ca", flags=wrong_ca)
        flags = agent_flags(door, tmp_path, door.tokens["all-but-train"])
        said += await fails(ExitCode.REFUSED, "OpenSession needs a token with the scope train", flags=flags)
        in_clear_text = ["trainer.connect_timeout_seconds=2"]
        said += await fails(ExitCode.UNREACHABLE, "within 2 s", "as one does that wants TLS", flags=in_clear_text)
    assert "call refused" in log.getvalue()
    for token in (secret, *door.tokens.values()):
        assert token not in log.getvalue() + said


def test_the_names_in_the_trainers_certificate_are_checked(door, tmp_path):
    assert "127.0.0.1" in SERVER.hosts
    flags = agent_flags(door, tmp_path, door.tokens["ours"])

    async def reached(server_name):
        async with running_trainer(*door.flags) as server:
            config = edge_config(
                *THREE_STEPS, f"trainer.address={server.address}", *flags, f"tls.server_name={server_name}"
            )
            await run_training(config)

    asyncio.run(reached("localhost"))
    with pytest.raises(Exception, match="no secure connection"):
        asyncio.run(reached("gpu.example.org"))
