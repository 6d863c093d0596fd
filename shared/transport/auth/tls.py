"""TLS for both ends, from PEM files. The files are checked here, with sentences; gRPC would only say that it failed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.secrets import read_file, read_secret

SETTLING_SECONDS = 0.05
"""A handshake takes microseconds from asking for a certificate to holding it; this long, where the machine is busy."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of one end: its own certificate (itself first, then the chain) and key, and the authority that it
    trusts."""

    certificate: Path | None
    key: Path | None
    ca: Path | None
    section: str = "tls"
    """Section of the configuration that names the files."""

    @property
    def paths(self) -> list[Path]:
        """The paths that are set."""
        return [path for path in (self.certificate, self.key, self.ca) if path is not None]


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The checked content of the files. own: the key and the certificate of this end."""

    own: tuple[bytes, bytes] | None
    ca: bytes | None


def read_material(files: TlsFiles) -> TlsMaterial:
    """Read and check. Raises ConfigError for files that are missing, no PEM, expired, or of different pairs."""
    from shared.transport.auth import pem  # 8 MB, needed only with files of TLS

    own = None
    if files.certificate is not None and files.key is not None:
        certificate = read_file(files.certificate, f"{files.section}.certificate")
        key = read_secret(files.key, f"{files.section}.key")
        pem.check_pair(certificate, key, files.certificate, files.key, files.section)
        own = (key, certificate)
    ca = None
    if files.ca is not None:
        ca = read_file(files.ca, f"{files.section}.ca")
        pem.certificates(ca, f"{files.section}.ca", files.ca)
    return TlsMaterial(own, ca)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials of a server that reads its files again when they change; connections that are there stay.

    With a `ca` every client must show a certificate that it has signed. Raises ConfigError.
    """
    news = _News(Reloaded(files.paths, lambda: _server_configuration(read_material(files))))
    return grpc.dynamic_ssl_server_credentials(
        news.told,
        news.tell,  # type: ignore[arg-type]  # the stubs do not know of None, gRPC's documentation does
        require_client_authentication=files.ca is not None,
    )


def channel_credentials(files: TlsFiles) -> Callable[[], grpc.ChannelCredentials]:
    """Return a function that gives a client's credentials, others once the files change; a channel keeps its first ones.

    Without a `ca` it trusts the public ones that gRPC brings. Raises ConfigError.
    """
    return Reloaded(files.paths, lambda: _channel_credentials(read_material(files))).get


def _channel_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(material.ca, *(material.own or (None, None)))


class _News:
    """The configuration that gRPC asks for before each handshake, one at a time; None while nothing has changed.

    With each answer but None gRPC frees what it had, even where another handshake has asked already and is about to
    take it (grpc/grpc#36693). So nothing is said twice, and a change is told only after earlier requests have their
    answers.
    """

    def __init__(self, configuration: Reloaded[grpc.ServerCertificateConfiguration]) -> None:
        self._configuration = configuration
        self.told = configuration.get()

    def tell(self) -> grpc.ServerCertificateConfiguration | None:
        configuration = self._configuration.get()
        if configuration is self.told:
            return None
        time.sleep(SETTLING_SECONDS)  # on gRPC's own thread, once a change
        self.told = configuration
        return configuration


def _server_configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    assert material.own is not None, "a server has a certificate"
    return grpc.ssl_server_certificate_configuration([material.own], material.ca)
