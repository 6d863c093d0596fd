"""Credentials by which a caller proves its identity to a trainer and knows the trainer: TLS and a bearer token, as
configured."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc

from shared.client.config import SYSTEM, ClientTlsConfig, TrainerAddressConfig
from shared.client.proxy import NO_PROXY
from shared.config import is_loopback
from shared.errors import ConfigError
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.secrets import read_secret
from shared.transport.auth.tls import TlsFiles, channel_credentials
from shared.transport.rpc.options import Options

BUNDLES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
"""Files in which systems keep what they trust, Debian's first, where OpenSSL itself knows of none."""


def _clear_text() -> None:
    pass


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class TrainerAccess:
    """Makes the channels to a trainer, and the metadata of each call.

    credentials: gives the current TLS credentials, the same object until their files change; None for clear text.
    server_name: the name in the trainer's certificate, where it is not the host of the address. token: gives the current token.
    token_broken: whether the token's file cannot be used now; then `token` gives the last good one. tls_section,
    trainer_section: where its TLS and the rest stand in the configuration; empty where nothing is configured. proxy: see
    `trainer.proxy`. ca: the file of the authorities that are trusted; None for those of gRPC.
    """

    credentials: Callable[[], grpc.ChannelCredentials | None] = _clear_text
    server_name: str | None = None
    token: Callable[[], str] | None = None
    token_broken: Callable[[], bool] = _never
    tls_section: str = "tls"
    trainer_section: str = "trainer"
    proxy: str | None = None
    ca: Path | None = None

    def channel(self, address: str, options: Options, socket: Path | None = None) -> grpc.aio.Channel:
        """A connection to the trainer at `address`, with the current credentials. socket: leads there, if it is dialled so."""
        credentials, server_name, target = self.credentials(), self.server_name, address
        if socket is not None:
            target, server_name = f"unix:{socket}", server_name or address.rpartition(":")[0].strip("[]")
            options = [*options, ("grpc.default_authority", address)]
        elif is_loopback(address) or self.proxy == NO_PROXY:  # no proxy's variable means this machine
            options = [*options, ("grpc.enable_http_proxy", 0)]
        elif self.proxy is not None:
            options = [*options, ("grpc.http_proxy", self.proxy)]
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        if server_name is not None:
            options = [*options, ("grpc.ssl_target_name_override", server_name)]
        return grpc.aio.secure_channel(target, credentials, options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call: the token, if there is one."""
        return () if self.token is None else (("authorization", f"Bearer {self.token()}"),)


def ticket_metadata(ticket: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that a trainer makes with a ticket, in the place of a token."""
    return (("authorization", f"Ticket {ticket}"),)


PLAIN = TrainerAccess()
"""Neither encryption nor token: for a trainer on the same machine."""


def authorities(tls: ClientTlsConfig, section: str = "tls") -> Path | None:
    """Return the file of the authorities that are trusted; None for those of gRPC. Raises ConfigError where there is none.

    section: where `tls` stands in the configuration.
    """
    if tls.ca != SYSTEM:
        return tls.ca
    own = ssl.get_default_verify_paths().cafile
    for path in (*([] if own is None else [Path(own)]), *BUNDLES):
        if path.is_file():
            return path
    raise ConfigError(
        f'{section}.ca is "system", and this system has no file of authorities, as {BUNDLES[0]}; install ca-certificates, or '
        "name a file"
    )


def tls_access(tls: ClientTlsConfig, tls_section: str = "tls", trainer_section: str = "trainer") -> TrainerAccess:
    """The access without a token. tls_section, trainer_section: see `TrainerAccess`. Raises ConfigError."""
    files = TlsFiles(tls.certificate, tls.key, authorities(tls, tls_section), tls_section)
    credentials = channel_credentials(files) if tls.used else _clear_text
    return TrainerAccess(
        credentials, tls.server_name, tls_section=tls_section, trainer_section=trainer_section, ca=files.ca
    )


def trainer_access(trainer: TrainerAddressConfig, tls: ClientTlsConfig) -> TrainerAccess:
    """The access that is configured. Raises ConfigError for files that cannot be used, and for a token in clear text."""
    token: Callable[[], str] | None = None
    token_broken = _never
    if (secret := trainer.token) is not None:
        token = partial(_checked, secret.get_secret_value(), "trainer.token")
    elif (path := trainer.token_file) is not None:
        # A file that is missing ends the start of a run; one that goes bad later does not end the run.
        reloaded = Reloaded([path], partial(_token_in, path))
        token, token_broken = reloaded.get, partial(_cannot_be_used, reloaded)
    if token is not None:
        token()
        if not (tls.used or trainer.insecure or is_loopback(trainer.address)):
            raise ConfigError(
                f"the token would go to {trainer.address} in clear text; set tls.enabled = true, or trainer.insecure = "
                "true for a network that is trusted as a whole"
            )
    return replace(tls_access(tls), token=token, token_broken=token_broken, proxy=trainer.proxy)


def _cannot_be_used(file: Reloaded[str]) -> bool:
    file.get()
    return file.failure is not None


def _token_in(path: Path) -> str:
    key = "trainer.token_file"
    return _checked(read_secret(path, key).decode(errors="replace").strip(), f"{key}: {path}")


def _checked(token: str, where: str) -> str:
    """The token, where a header can carry it. Raises ConfigError, whose sentence does not show the token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{where} holds no token; it must be what `cloud-trainer token` printed, and nothing else")
    return token
