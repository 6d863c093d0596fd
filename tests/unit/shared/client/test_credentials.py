"""Credentials that an agent sends: no token in clear text, none that others can read, and the newest each time."""

import pytest

from cloud_trainer.control.certificates import make_authority
from isthmus import EdgeConfig
from shared.client import credentials
from shared.client.credentials import trainer_access
from shared.config import load_config
from shared.errors import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    make_authority("ours", 1).write(folder / "ca.pem", folder / "ca.key")
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text("abc\n")
    return folder


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


def test_the_systems_authorities_are_looked_for_where_systems_keep_them(folder, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "absent.pem"))
    monkeypatch.setattr(credentials, "BUNDLES", (folder / "absent.pem", folder / "ca.pem"))
    tls = load_config(EdgeConfig, None, ["tls.ca=system"], {}).tls
    assert tls.used
    assert credentials.authorities(tls) == folder / "ca.pem"
    monkeypatch.setattr(credentials, "BUNDLES", (folder / "absent.pem",))
    with pytest.raises(ConfigError, match=r'tls\.ca is "system", and this system has no file of authorities'):
        access("gpu.example.org:1", "tls.ca=system")


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
