"""A certificate authority for development and small fleets: it signs the trainer's certificate and the agents'.

A larger fleet has an authority already; `Identity` says what is needed from it. Keys are ECDSA on P-256.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.errors import ConfigError
from shared.transport.auth.secrets import read_file, read_secret

_CLOCK_SKEW = datetime.timedelta(hours=1)
"""A device without a battery for its clock may be behind."""
_HOST = re.compile(r"[\w*-]+(\.[\w*-]+)*\.?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Identity:
    """The subject of a certificate.

    name: the common name, a client's subject. hosts: names and addresses that a server is reached by; none for a client.
    """

    name: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, certificate_path: Path, key_path: Path) -> None:
        """Both as PEM, each file whole or not at all, the key closed to other users. Raises ConfigError."""
        private = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(key_path, private, 0o600)
        _write(certificate_path, self.certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def make_authority(name: str, days: int) -> Signed:
    """A new authority; its certificate signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Signed(builder.sign(key, hashes.SHA256()), key)


def read_authority(certificate_path: Path, key_path: Path) -> Signed:
    """An authority that was written before. Raises ConfigError."""
    try:
        certificate = x509.load_pem_x509_certificate(read_file(certificate_path, "the authority's certificate"))
        key = serialization.load_pem_private_key(read_secret(key_path, "the authority's key"), password=None)
    except (ValueError, TypeError) as cause:
        raise ConfigError(f"{certificate_path} and {key_path} are no authority that this command has made") from cause
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"{key_path} is not the key of the authority {certificate_path}")
    return Signed(certificate, key)


def issue(authority: Signed, identity: Identity, days: int) -> Signed:
    """A certificate that the authority has signed; one of 0 days or fewer has expired already."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(identity.name), authority.certificate.subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if identity.hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(signer, critical=False)
    if identity.hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in identity.hosts])
        builder = builder.add_extension(names, critical=False)
    return Signed(builder.sign(authority.key, hashes.SHA256()), key)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file, whole or not at all and never open to more than `mode`. Raises ConfigError."""
    scratch = path.with_name(path.name + ".new")
    try:
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # A certificate is public, whatever the umask.
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as cause:
        raise ConfigError(f"{path} cannot be written: {cause.strerror}") from cause


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(min(now, end) - _CLOCK_SKEW).not_valid_after(end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _name(common_name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    except ValueError as cause:
        raise ConfigError(f"{common_name!r} cannot be a common name; it must have 1 to 64 characters") from cause


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):  # no peer would ever find such a name to be its own
        raise ConfigError(
            f"host {host!r} cannot stand in a certificate; it must be a name in ASCII or an address, without a port"
        )
    return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def reachable_names(hosts: Sequence[str], hostname: str) -> tuple[str, ...]:
    """Return the names for a trainer's certificate: `hosts`, this machine's name, and loopback."""
    return tuple(dict.fromkeys([*hosts, hostname, "localhost", "127.0.0.1", "::1"]))
