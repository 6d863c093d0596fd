"""Certificates that are made here: OpenSSL trusts each for its purpose, and for nothing else."""

import socket
import ssl
import stat
import threading

import pytest
from typer.testing import CliRunner

from cloud_trainer.control.certificates import Identity, issue, make_authority, read_authority
from cloud_trainer.main import app
from shared.errors import ConfigError
from shared.transport.auth.tls import TlsFiles, read_material


def handshake(folder, server="trainer", client=None, name="gpu.example.org", ca="ca.pem"):
    """Connect two sides. Raises ssl.SSLError unless both trust each other."""
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    serving.load_cert_chain(folder / f"{server}.pem", folder / f"{server}.key")
    serving.verify_mode = ssl.CERT_REQUIRED if client else ssl.CERT_NONE
    calling = ssl.create_default_context(cafile=folder / ca)
    if client:
        calling.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    here, there = socket.socketpair()
    failures = []

    def serve():
        try:
            with serving.wrap_socket(there, server_side=True) as wrapped:
                wrapped.recv(1)
        except OSError as failure:
            failures.append(failure)
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with calling.wrap_socket(here, server_hostname=name) as wrapped:
            wrapped.send(b"x")
    finally:
        here.close()
        thread.join()
    if failures:
        raise failures[0]


def certs(folder, *arguments):
    done = CliRunner().invoke(app, ["certs", str(folder), "--host", "gpu.example.org", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.fixture
def folder(tmp_path):
    certs(tmp_path, "--client", "pi-7", "--client", "pi-8")
    return tmp_path


@pytest.mark.parametrize("name", ["gpu.example.org", "localhost", "127.0.0.1", "::1"])
def test_both_sides_believe_what_the_command_has_made(folder, name):
    handshake(folder, client="pi-7", name=name)


def test_another_name_is_not_believed(folder):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"gpu\.example\.com"):
        handshake(folder, name="gpu.example.com")


@pytest.mark.parametrize(
    "host", ["gpu.example.org:50051", "https://gpu.example.org", "[2001:db8::7]", "gpü.example.org", ""]
)
def test_what_no_peer_would_take_for_the_trainers_name_is_refused(host, tmp_path):
    with pytest.raises(ConfigError, match="it must be a name in ASCII or an address, without a port"):
        certs(tmp_path / "new", "--host", host)
    assert not (tmp_path / "new" / "trainer.pem").exists()


def test_an_agents_certificate_is_no_trainers(folder):
    with pytest.raises(ssl.SSLError):
        handshake(folder, server="pi-7")


def test_a_trainers_certificate_is_no_agents(folder):
    with pytest.raises(ssl.SSLError):
        handshake(folder, client="trainer")


def test_another_authority_is_not_believed(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    certs(other)
    (folder / "other.pem").write_bytes((other / "ca.pem").read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, ca="other.pem")


def test_keys_are_closed_to_others_and_the_authority_stays_when_certificates_are_renewed(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert all(stat.S_IMODE((folder / name).stat().st_mode) == 0o600 for name in before if name.endswith(".key"))
    certs(folder, "--client", "pi-7")
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"trainer.pem", "trainer.key", "pi-7.pem", "pi-7.key"}
    handshake(folder, client="pi-8")


@pytest.mark.parametrize("client", ["ca", "trainer", "../pi", "", "a b"])
def test_an_agents_name_that_cannot_be_a_file(tmp_path, client):
    with pytest.raises(ConfigError, match="client"):
        certs(tmp_path, "--client", client)
    assert not (tmp_path.parent / "pi.pem").exists()


def test_an_authority_that_is_not_whole_is_not_replaced(folder):
    (folder / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key cannot be read"):
        certs(folder)
    make_authority("another", 1).write(folder / "x.pem", folder / "ca.key")
    with pytest.raises(ConfigError, match="not the key of the authority"):
        certs(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "trainer.pem").unlink(), r"tls.certificate: .*trainer.pem cannot be read: No such file"),
        (lambda f: (f / "trainer.pem").write_text("x"), r"tls.certificate: .* holds no certificate in PEM"),
        (lambda f: (f / "trainer.key").write_text("x"), r"tls.key: .* is not an unencrypted private key in PEM"),
        (lambda f: (f / "trainer.key").chmod(0o604), r"tls.key: .* is open to every user of this machine; chmod 600"),
        (
            lambda f: (f / "trainer.key").write_bytes((f / "pi-7.key").read_bytes()),
            r"tls.key: .* is not the key of the certificate .*trainer.pem",
        ),
        (lambda f: (f / "ca.pem").write_text("x"), r"tls.ca: .* holds no certificate in PEM"),
        (lambda f: expire(f), r"tls.certificate: .* expired on 20\d\d-\d\d-\d\d; a new one is needed"),
    ],
)
def test_files_that_cannot_be_used(folder, damage, says):
    files = TlsFiles(folder / "trainer.pem", folder / "trainer.key", folder / "ca.pem")
    read_material(files)
    damage(folder)
    with pytest.raises(ConfigError, match=says):
        read_material(files)


def expire(folder):
    authority = read_authority(folder / "ca.pem", folder / "ca.key")
    issue(authority, Identity("trainer", ("localhost",)), 0).write(folder / "trainer.pem", folder / "trainer.key")
