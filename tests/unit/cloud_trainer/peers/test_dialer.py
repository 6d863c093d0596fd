"""The trainers that may be dialled, as the operator configured it."""

import pytest

from cloud_trainer.config import TrainerConfig
from cloud_trainer.control.certificates import make_authority
from cloud_trainer.peers.dialer import PeerDialer
from shared.config import load_config
from shared.errors import ConfigError, ProtocolError
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.trainer_pb2 import Peer


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    make_authority("ours", 1).write(folder / "ca.pem", folder / "ca.key")
    return folder / "ca.pem"


def dialer(allowed, *flags):
    config = load_config(TrainerConfig, None, [f"peers.allowed={allowed}", *flags], environ={})
    return PeerDialer(config.peers, config.link, insecure=config.server.insecure)


def peer(address, session_id="5e55" * 8, ticket="a-ticket_1"):
    return Peer(worker="far", address=address, session_id=session_id, ticket=ticket)


@pytest.mark.parametrize(
    "named",
    [
        {"session_id": "../" * 10 + "ab"},
        {"session_id": ""},
        {"ticket": ""},
        {"ticket": "two\nlines"},
        {"ticket": "a ticket"},
        {"ticket": "é"},
        {"ticket": "t" * 129},
    ],
)
def test_a_malformed_session_or_ticket_dials_nobody(named):
    with pytest.raises(ProtocolError, match=r"can be no (session of 'far'|ticket)$"):
        dialer('["127.0.0.1:5"]').check(peer("127.0.0.1:5", **named))


@pytest.mark.parametrize(
    ("allowed", "address", "may"),
    [
        ('["127.0.0.1:5"]', "127.0.0.1:5", True),
        ('["127.0.0.1:5"]', "127.0.0.1:55", False),
        ('["127.0.0.1:5"]', "localhost:5", False),
        ('["localhost:*"]', "localhost:65535", True),
        ('["localhost:*"]', "localhost:65536", False),
        ('["localhost:*"]', "localhost:*", False),
        ('["localhost:*"]', "localhost", False),
        ('["localhost:*"]', "localhost:1/x:2", False),
        ('["localhost:*"]', "unix:localhost:1", False),
        ('["[::1]:*"]', "[::1]:7", True),
        ('["[::1]:*"]', "[::2]:7", False),
        ("[]", "127.0.0.1:5", False),
    ],
)
def test_an_address_is_allowed_as_it_is_written_or_by_its_host(allowed, address, may):
    if may:
        dialer(allowed).check(peer(address))
        return
    with pytest.raises(StatusError, match=r"operator has not allowed that address \(peers\.allowed\)"):
        dialer(allowed).check(peer(address))


@pytest.mark.parametrize("wrong", ["localhost", "*:1", "localhost:0", "localhost:x", "local host:*", ":*", "a:b:*"])
def test_only_addresses_and_hosts_can_be_allowed(wrong):
    with pytest.raises(ConfigError, match=r"it must be host:port with a port of 1 to 65535, or host:\* for every port"):
        dialer(f'["{wrong}"]')


def test_clear_text_to_another_machine_needs_the_insecure_flag(authority):
    abroad = '["127.0.0.1:*", "gpu.example.org:50051"]'
    with pytest.raises(
        ConfigError, match=r"to gpu\.example\.org:50051 in clear text \(peers\.allowed\); set peers\.tls"
    ):
        dialer(abroad)
    for allowed in ("peers.tls.enabled=true", f"peers.tls.ca={authority}", "server.insecure=true"):
        dialer(abroad, allowed).check(peer("gpu.example.org:50051"))


def test_a_file_that_cannot_be_used_is_named_with_its_key(tmp_path):
    with pytest.raises(ConfigError, match=r"^peers\.tls\.ca: .* cannot be read"):
        dialer("[]", f"peers.tls.ca={tmp_path / 'ca.pem'}")
