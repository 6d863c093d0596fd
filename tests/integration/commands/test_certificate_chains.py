"""Chains of certificates: a run and the doctor trust the same ones, whichever part of a chain is sent, and which is known."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cloud_trainer.control.certificates import Signed, issue
from edge_agent.doctor.examine import examine_trainers
from edge_agent.doctor.finding import Status
from edge_agent.run import run_training
from shared.errors import AccessError
from tests.support.peers.strangers import SERVER
from tests.support.running import GIVE_UP_AT_ONCE, edge_config, running_trainer


def authority(name, above=None):
    """An authority that another one has signed; a root without one."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if above is None else above.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=100))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return Signed(builder.sign(key if above is None else above.key, hashes.SHA256()), key)


@pytest.fixture
def files(tmp_path):
    """Write a root, the authority between, and the trainer's certificate alone and with that one. Return their folder."""
    root = authority("root")
    between = authority("between", root)
    root.write(tmp_path / "root.pem", tmp_path / "root.key")
    between.write(tmp_path / "between.pem", tmp_path / "between.key")
    issue(between, SERVER, 100).write(tmp_path / "alone.pem", tmp_path / "trainer.key")
    whole = (tmp_path / "alone.pem").read_bytes() + (tmp_path / "between.pem").read_bytes()
    (tmp_path / "whole.pem").write_bytes(whole)
    return tmp_path


@pytest.mark.parametrize(
    ("sent", "known", "is_systems", "is_trusted"),
    [
        ("whole", "root", False, True),
        ("alone", "root", False, False),
        ("alone", "between", False, True),
        ("whole", "between", False, True),
        ("alone", "alone", False, True),
        ("whole", "root", True, True),
        ("alone", "root", True, False),
    ],
)
async def test_a_run_and_the_doctor_trust_the_same_chains(sent, known, is_systems, is_trusted, files, monkeypatch):
    ca = f"{files / known}.pem"
    if is_systems:
        monkeypatch.setenv("SSL_CERT_FILE", ca)
        ca = "system"
    served = f"tls.certificate={files / sent}.pem", f"tls.key={files / 'trainer.key'}"
    async with running_trainer(*served) as server:
        asked = f"tls.ca={ca}", f"trainer.address={server.address}", "training.max_steps=2"
        found = {each.check: each for each in await examine_trainers(edge_config(*asked))}["encryption"]
        if is_trusted:
            assert (await run_training(edge_config(*asked, GIVE_UP_AT_ONCE))).summary.steps == 2
            assert found.status is not Status.FIX, found
        else:
            with pytest.raises(AccessError):
                await run_training(edge_config(*asked, GIVE_UP_AT_ONCE))
            assert found.status is Status.FIX
            assert "tls.certificate" in found.remedy, "of the trainer, which lacks the one between"
