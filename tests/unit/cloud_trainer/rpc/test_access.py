"""The addresses where a trainer may listen: in clear text on its own machine only, elsewhere with authentication."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from cloud_trainer.config import TrainerConfig
from cloud_trainer.control.certificates import Identity, issue, make_authority
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.access import build_gate
from cloud_trainer.rpc.connections import Connections
from shared.config import is_loopback, load_config
from shared.errors import ConfigError
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tokens import make_token

HOME = ["127.0.0.1:0", "127.8.9.1:50051", "[::1]:0", "localhost:1"]
ABROAD = ["0.0.0.0:0", "[::]:0", "192.168.1.5:50051", "[2001:db8::1]:1", "gpu.example.org:50051", "localhost.example:1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    authority = make_authority("ours", 1)
    authority.write(folder / "ca.pem", folder / "ca.key")
    issue(authority, Identity("x", ("localhost",)), 1).write(folder / "x.pem", folder / "x.key")
    (folder / "tokens.toml").write_text(make_token("ours", [Scope.TRAIN])[1])
    return folder


def gate(listen, *flags):
    config = load_config(TrainerConfig, None, [f"server.listen={listen}", *flags], environ={})
    metrics = TrainerMetrics(CollectorRegistry())
    return build_gate(config, metrics, Connections(metrics), {})


@pytest.mark.parametrize("address", HOME)
def test_on_loopback_nothing_is_asked_for(address):
    assert is_loopback(address)
    gate(address)


@settings(deadline=None)
@given(listen=st.sampled_from(ABROAD), encrypted=st.booleans(), asks=st.sampled_from([None, "token", "certificate"]))
def test_a_reachable_address_needs_encryption_and_authentication_or_the_insecure_flag(folder, listen, encrypted, asks):
    encrypted = encrypted or asks == "certificate"  # Neither works without the other.
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
