"""The reachability of the trainer, and its identity: names, TCP and TLS, without gRPC."""

import asyncio
import datetime
import os
import pkgutil
import socket
import ssl
from contextlib import suppress

from cryptography import x509

from edge_agent.doctor.finding import Finding, advise, fine, fix
from shared.client.config import ClientTlsConfig, TrainerAddressConfig
from shared.client.credentials import authorities
from shared.client.proxy import Proxy, ProxyRefusalError, open_way, proxy_for
from shared.config import is_loopback

CONNECT_SECONDS = 5.0
"""The time for each thing that is waited for: a connection, a handshake, and the trainer's first word after it."""
SOON = datetime.timedelta(days=30)
"""A certificate that ends within it is better renewed now."""


async def check_name(trainer: TrainerAddressConfig, host: str, port: int) -> Finding:
    """Check that the name which this device looks up has an address: the trainer's, or that of the proxy on the way."""
    proxy = proxy_for(trainer.address, trainer.proxy)
    remedy = "correct trainer.address, or this device's DNS"
    if proxy is not None:
        host, port, remedy = proxy.host, proxy.port, _without(proxy, trainer)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for an impossible name
        return fix("name", f"{host}: {getattr(error, 'strerror', None) or error}", remedy)
    shown = f"{host} is {', '.join(dict.fromkeys(str(entry[4][0]) for entry in found))}"
    return fine("name", shown if proxy is None else f"{shown}, the proxy of {proxy}, which looks the trainer's name up")


def _without(proxy: Proxy, trainer: TrainerAddressConfig) -> str:
    host = trainer.address.rpartition(":")[0].strip("[]")
    return f"correct {proxy.variable}, or add {host} to no_proxy, so that the trainer is dialled without a proxy"


async def check_connection(trainer: TrainerAddressConfig, host: str, port: int) -> Finding:
    """Check that the trainer's port accepts connections, through the proxy if there is one on the way."""
    proxy = proxy_for(trainer.address, trainer.proxy)
    where = f"port {port}" if proxy is None else f"port {port} through the proxy of {proxy}"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await open_way(host, port, setting=trainer.proxy)
    except TimeoutError:
        return fix(
            "connection",
            f"{where} did not answer for {CONNECT_SECONDS:g} s",
            "let a firewall on the way pass this port; is the machine on?",
        )
    except OSError as error:
        remedy = "start the trainer there (cloud-trainer serve), and see that its server.listen is not loopback only"
        if proxy is not None:
            remedy = _without(proxy, trainer)
            if isinstance(error, ProxyRefusalError):
                remedy = f"see that the trainer runs and that the proxy permits CONNECT to it, or {remedy}"
        return fix("connection", f"{where}: {error.strerror or error}", remedy)
    writer.close()
    return fine("connection", f"{where} is open")


async def check_encryption(trainer: TrainerAddressConfig, tls: ClientTlsConfig, host: str, port: int) -> Finding:
    """Check that both ends agree on TLS, trust each other, and go on doing so for a while."""
    if not tls.used:
        return await _check_clear_text(trainer, host, port)
    try:
        certificate = await _introduced(_context(tls), trainer, host, port, tls.server_name or host)
    except OSError as error:
        return judge_handshake(error)
    return judge_certificate(certificate.not_valid_after_utc, datetime.datetime.now(datetime.UTC))


async def _check_clear_text(trainer: TrainerAddressConfig, host: str, port: int) -> Finding:
    if await _speaks_tls(trainer, host, port):
        return fix(
            "encryption",
            "the trainer speaks TLS, and this agent does not",
            "set tls.ca to the trainer's authority, or tls.enabled = true for one that is publicly known",
        )
    if is_loopback(trainer.address) or trainer.insecure:
        return fine("encryption", "none, as it is meant")
    return advise(
        "encryption", "none: all can be read on the way", "see docs/security.md, five minutes to a closed port"
    )


def _context(tls: ClientTlsConfig) -> ssl.SSLContext:
    """As gRPC has it: its own public certificates where no others are named, and any certificate that is named ends a chain."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    if (trusted := authorities(tls)) is not None:
        context.load_verify_locations(trusted)
    elif roots := os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        context.load_verify_locations(roots)
    elif (public := pkgutil.get_data("grpc", "_cython/_credentials/roots.pem")) is not None:
        context.load_verify_locations(cadata=public.decode())
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


async def _introduced(
    context: ssl.SSLContext, trainer: TrainerAddressConfig, host: str, port: int, name: str
) -> x509.Certificate:
    """The trainer's certificate, once it has accepted ours. Raises OSError (ssl.SSLError and TimeoutError among them)."""
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await _secured(context, trainer, host, port, name)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                if not await reader.read(1):  # a trainer speaks first; one that refuses us ends the connection
                    raise ConnectionResetError
    finally:
        writer.close()
    return x509.load_der_x509_certificate(shown)


async def _secured(
    context: ssl.SSLContext, trainer: TrainerAddressConfig, host: str, port: int, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and finish the handshake. Raises OSError, as `_introduced`."""
    reader, writer = await open_way(host, port, setting=trainer.proxy)
    try:
        await writer.start_tls(context, server_hostname=name)
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def _speaks_tls(trainer: TrainerAddressConfig, host: str, port: int) -> bool:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await _secured(anybody, trainer, host, port, host)
    except ssl.SSLError as error:
        return _is_alert(error)
    except OSError:
        return False
    writer.close()
    return True


def _is_alert(error: ssl.SSLError) -> bool:
    """Tell whether the other side has named its objection in TLS."""
    return "ALERT" in (error.reason or "")


def judge_handshake(error: OSError) -> Finding:
    """Explain why a handshake failed, and which side must repair it."""
    if isinstance(error, TimeoutError):
        return fix("encryption", "the trainer did not finish the handshake", "does something else listen there?")
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message
        if "ostname mismatch" in said or "IP address mismatch" in said:
            remedy = "use the name that the certificate is for in trainer.address, or say it in tls.server_name"
        elif "expired" in said:
            remedy = "renew the trainer's certificate (cloud-trainer certs, run again), or fix this device's clock"
        elif "not yet valid" in said:
            remedy = "fix this device's clock"
        else:
            remedy = (
                "set tls.ca to the authority that has signed the trainer's certificate; one that stands between the two "
                "belongs into the trainer's tls.certificate, behind its own"
            )
        return fix("encryption", f"the trainer's certificate is not trusted: {said}", remedy)
    if isinstance(error, ssl.SSLError) and not _is_alert(error):
        return fix(
            "encryption",
            "the trainer does not speak TLS",
            "give it a [tls] of its own, or leave this agent's [tls] out",
        )
    return fix(
        "encryption",
        "the trainer refuses this agent's certificate, or misses one",
        "set tls.certificate and tls.key to a pair that the trainer's tls.ca has signed",
    )


def judge_certificate(ends: datetime.datetime, now: datetime.datetime) -> Finding:
    """Judge how long a certificate will be trusted. ends, now: in UTC."""
    shown = f"TLS; the trainer's certificate is good until {ends:%Y-%m-%d}"
    if ends - now < SOON:
        return advise("encryption", shown, "renew it on the trainer (cloud-trainer certs, run again)")
    return fine("encryption", shown)
