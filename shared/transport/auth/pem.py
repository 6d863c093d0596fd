"""Checks of PEM files that hold certificates and keys."""

import datetime
import warnings
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.utils import CryptographyDeprecationWarning

from shared.errors import ConfigError


def check_pair(certificate: bytes, key: bytes, certificate_path: Path, key_path: Path, section: str) -> None:
    """Raises ConfigError unless the certificate has not expired and the key is its own.

    section: where both stand in the configuration.
    """
    own = certificates(certificate, f"{section}.certificate", certificate_path)[0]
    now = datetime.datetime.now(datetime.UTC)
    if own.not_valid_after_utc <= now:
        raise ConfigError(
            f"{section}.certificate: {certificate_path} expired on {own.not_valid_after_utc:%Y-%m-%d}; a new one is needed"
        )
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as cause:
        raise ConfigError(f"{section}.key: {key_path} is not an unencrypted private key in PEM") from cause
    kind = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*kind) != own.public_key().public_bytes(*kind):
        raise ConfigError(f"{section}.key: {key_path} is not the key of the certificate {certificate_path}")


def certificates(data: bytes, key: str, path: Path) -> list[x509.Certificate]:
    """All in a file, one at least. Raises ConfigError where there is none; key: of the configuration, which names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)  # some authorities of systems bring one
            return x509.load_pem_x509_certificates(data)
    except ValueError as cause:
        raise ConfigError(f"{key}: {path} holds no certificate in PEM") from cause


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses of hosts for which a certificate stands; a name may begin with a star for one label."""
    try:
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return (*known.get_values_for_type(x509.DNSName), *map(str, known.get_values_for_type(x509.IPAddress)))
