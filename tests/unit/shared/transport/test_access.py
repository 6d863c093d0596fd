"""Where a trainer may listen, what an agent may send where, and whose a session is."""

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from cloud_trainer import TrainerConfig
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.access import build_gate
from cloud_trainer.sessions.registry import SessionRegistry
from edge_agent import EdgeConfig
from shared.client.credentials import trainer_access
from shared.config import is_loopback, load_config
from shared.errors import ConfigError
from shared.transport.auth.callers import ANYONE, Caller, set_caller
from shared.transport.auth.certificates import Identity, issue, make_authority
from shared.transport.auth.tokens import Scope, make_token
from shared.transport.rpc.status import Refusal

HOME = ["127.0.0.1:0", "127.8.9.1:50051", "[::1]:0", "localhost:1"]
ABROAD = ["0.0.0.0:0", "[::]:0", "192.168.1.5:50051", "[2001:db8::1]:1", "gpu.example.org:50051", "localhost.example:1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    authority = make_authority("ours", 1)
    authority.write(folder / "ca.pem", folder / "ca.key")
    issue(authority, Identity("x", ("localhost",)), 1).write(folder / "x.pem", folder / "x.key")
    (folder / "tokens.toml").write_text(make_token("ours", [Scope.TRAIN])[1])
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text("abc\n")
    return folder


def gate(listen, *flags):
    config = load_config(TrainerConfig, None, [f"server.listen={listen}", *flags], environ={})
    return build_gate(config, TrainerMetrics(CollectorRegistry()))


@pytest.mark.parametrize("address", HOME)
def test_on_loopback_nothing_is_asked_for(address):
    assert is_loopback(address)
    gate(address)


@settings(deadline=None)
@given(listen=st.sampled_from(ABROAD), encrypted=st.booleans(), asks=st.sampled_from([None, "token", "certificate"]))
def test_what_others_can_reach_is_encrypted_and_asks_who_they_are_or_is_said_to_be_insecure(
    folder, listen, encrypted, asks
):
    encrypted = encrypted or asks == "certificate"  # one cannot be asked for without the other
    flags = [
        *([f"tls.certificate={folder / 'x.pem'}", f"tls.key={folder / 'x.key'}"] if encrypted else []),
        *([f"auth.tokens={folder / 'tokens.toml'}"] if asks == "token" else []),
        *([f"tls.ca={folder / 'ca.pem'}"] if asks == "certificate" else []),
    ]
    if encrypted and asks:
        gate(listen, *flags)
        return
    with pytest.raises(ConfigError) as raised:
        gate(listen, *flags)
    assert ("encryption (tls.certificate" in str(raised.value)) == (not encrypted)
    assert ("authentication (auth.tokens" in str(raised.value)) == (asks is None)
    gate(listen, *flags, "server.insecure=true")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["tls.certificate=x.pem"], "tls: certificate and key belong together; set both or neither"),
        (["tls.ca=x.pem"], "tls: ca asks clients for certificates, which needs TLS"),
    ],
)
def test_keys_that_do_not_go_together(flags, says):
    with pytest.raises(ConfigError, match=says):
        gate("127.0.0.1:0", *flags)


def access(address, *flags, environ=None):
    config = load_config(EdgeConfig, None, [f"trainer.address={address}", *flags], environ or {})
    return trainer_access(config.trainer, config.tls)


@pytest.mark.parametrize("address", ["gpu.example.org:1", "10.0.0.1:50051"])
def test_a_token_does_not_go_abroad_in_clear_text(folder, address):
    token = f"trainer.token_file={folder / 'token'}"
    with pytest.raises(ConfigError, match="in clear text"):
        access(address, token)
    for allowed in ("tls.enabled=true", f"tls.ca={folder / 'ca.pem'}", "trainer.insecure=true"):
        assert access(address, token, allowed).metadata() == (("authorization", "Bearer abc"),)
    assert access("127.0.0.1:1", token).metadata() == (("authorization", "Bearer abc"),)
    assert access(address).metadata() == ()


def test_a_token_of_the_environment_goes_before_that_of_a_file_and_a_file_is_read_at_every_call(folder):
    token = f"trainer.token_file={folder / 'token'}"
    both = access("127.0.0.1:1", token, environ={"EDGE_AGENT_TRAINER__TOKEN": "of-the-environment"})
    assert both.metadata() == (("authorization", "Bearer of-the-environment"),)
    reader = access("127.0.0.1:1", token)
    (folder / "token").write_text("new")
    assert reader.metadata() == (("authorization", "Bearer new"),)
    (folder / "token").write_text("abc\n")


@pytest.mark.parametrize("secret", ["", "two words", "line\nbreak", "nö", "\x00"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(folder, secret):
    (folder / "wrong").touch(mode=0o600)
    (folder / "wrong").write_text(secret)
    with pytest.raises(ConfigError, match="holds no token") as raised:
        access("127.0.0.1:1", f"trainer.token_file={folder / 'wrong'}")
    assert not secret or secret not in str(raised.value)


def test_a_token_file_that_others_can_read_is_refused(folder):
    (folder / "open").write_text("abc")
    (folder / "open").chmod(0o644)
    with pytest.raises(ConfigError, match="open to every user of this machine; chmod 600"):
        access("127.0.0.1:1", f"trainer.token_file={folder / 'open'}")


def test_a_token_is_not_shown_with_the_configuration():
    config = load_config(EdgeConfig, None, [], environ={"EDGE_AGENT_TRAINER__TOKEN": "s3cret"})
    assert "s3cret" not in config.model_dump_json() + repr(config) + str(config)


class Built:
    begun = True
    """A session, as far as `Sessions` looks at it."""

    def __init__(self, session_id):
        self.id = session_id


@pytest.fixture
def calls_as():
    yield lambda subject: set_caller(Caller(subject))
    set_caller(ANYONE)


def sessions_of(limit, limit_per_subject=None):
    return SessionRegistry(limit, 60.0, 60.0, lambda _expired: None, limit_per_subject)


async def test_a_session_is_there_for_its_owner_alone(calls_as):
    sessions = sessions_of(3)
    calls_as("a")
    session = Built(sessions.reserve())
    sessions.add(session)
    with sessions.using(session.id) as found:
        assert found is session
    calls_as("b")
    with pytest.raises(Refusal) as asked, sessions.using(session.id):
        pass
    with pytest.raises(Refusal) as closed:
        sessions.check_owner(session.id)
    with pytest.raises(Refusal) as nobodys, sessions.using("never-was"):
        pass
    for theirs in (asked, closed):
        assert theirs.value.code is grpc.StatusCode.NOT_FOUND
        said = str(theirs.value).replace(session.id, "never-was")
        assert said == str(nobodys.value), "nothing tells an id that is another's from one that never was"
    sessions.check_owner("never-was")
    sessions.remove(session.id)


def test_places_are_bounded_for_all_and_for_each(calls_as):
    sessions = sessions_of(3, 2)
    calls_as("a")
    sessions.reserve()
    own = sessions.reserve()
    with pytest.raises(Refusal, match="2 sessions of 'a' are open") as refused:
        sessions.reserve()
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.retry_after_seconds > 0
    calls_as("b")
    sessions.reserve()
    with pytest.raises(Refusal, match="3 sessions are open"):
        sessions.reserve()
    sessions.remove(own)
    sessions.reserve()
