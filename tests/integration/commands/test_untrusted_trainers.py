"""A trainer without a secure connection: a run says why, and which key to look at, without the words of a library."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest

from cloud_trainer.control.certificates import Identity, issue, make_authority
from edge_agent.run import run_training
from shared.errors import AccessError, UnreachableError
from tests.support.peers.strangers import SERVER
from tests.support.running import GIVE_UP_AT_ONCE, edge_config, running_trainer

DOCTOR = "; `edge-agent doctor` says what to repair"


@pytest.fixture
def files(tmp_path):
    """Write two authorities, and certificates of the first one: right, expired, and for another name. Return their folder."""
    for name in ("ours", "theirs"):
        authority = make_authority(name, 1)
        authority.write(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        if name == "ours":
            issued = {"right": (SERVER, 1), "expired": (SERVER, 0), "other": (Identity("other", ("gpu.example",)), 1)}
            for kind, (identity, days) in issued.items():
                issue(authority, identity, days).write(tmp_path / f"{kind}.pem", tmp_path / f"{kind}.key")
    return tmp_path


@asynccontextmanager
async def listening(certificate):
    """Listen with a certificate that a trainer would not start with, or that has expired since."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    context.set_alpn_protocols(["h2"])

    async def hang_up(_reader, writer):
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def refusal_of(address, *flags):
    with pytest.raises(AccessError) as refused:
        await run_training(edge_config(f"trainer.address={address}", *flags, GIVE_UP_AT_ONCE))
    return str(refused.value).removeprefix(f"no secure connection to the trainer at {address}: ")


@pytest.mark.parametrize(
    ("shown", "known", "says"),
    [
        ("right", "theirs", "its certificate is not trusted: unable to get local issuer certificate (tls.ca is {ca})"),
        ("expired", "ours", "its certificate is not trusted: certificate has expired (tls.ca is {ca})"),
        (
            "right",
            None,
            "its certificate is not trusted: unable to get local issuer certificate (tls.ca is left out)",
        ),
        ("other", "ours", "its certificate is for another name (tls.server_name)"),
    ],
)
async def test_a_certificate_that_is_not_trusted_is_told_with_its_key(shown, known, says, files):
    ca = files / f"{known}.pem"
    trust = "tls.enabled=true" if known is None else f"tls.ca={ca}"
    async with listening(files / f"{shown}.pem") as address:
        assert await refusal_of(address, trust) == says.format(ca=ca) + DOCTOR


async def test_a_trainer_without_encryption_is_told_with_the_section_that_asks_for_it():
    async with running_trainer() as server:
        said = await refusal_of(server.address, "tls.enabled=true")
    assert said == "it does not speak TLS, which [tls] asks for" + DOCTOR


@pytest.mark.parametrize("shown", [None, "stranger"])
async def test_a_trainer_that_wants_another_certificate_is_told_by_what_it_does(shown, files):
    issue(make_authority("somebody's", 1), Identity("edge"), 1).write(files / "stranger.pem", files / "stranger.key")
    wanting = [
        f"tls.certificate={files / 'right.pem'}",
        f"tls.key={files / 'right.key'}",
        f"tls.ca={files / 'ours.pem'}",
    ]
    own = [] if shown is None else [f"tls.certificate={files / shown}.pem", f"tls.key={files / shown}.key"]
    async with running_trainer(*wanting) as server:
        given = [
            f"trainer.address={server.address}",
            f"tls.ca={files / 'ours.pem'}",
            "trainer.connect_timeout_seconds=1",
        ]
        with pytest.raises(UnreachableError) as refused:
            await run_training(edge_config(*given, *own, GIVE_UP_AT_ONCE))
    said = ": it ends the connection, as one does that wants TLS or a certificate which it trusts ([tls])" + DOCTOR
    assert str(refused.value).endswith(said)
