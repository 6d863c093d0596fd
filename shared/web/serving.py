"""The server of the live page: its address, its certificate, its callers."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor

from shared.config import WebConfig
from shared.errors import ConfigError, ListenError
from shared.transport.auth.callers import Authenticator
from shared.transport.auth.gate import Gate, GateLimits, scopes_of
from shared.transport.auth.reloaded import Reloaded
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tls import TlsFiles, read_material
from shared.transport.auth.tokens import TokenBook, read_tokens
from shared.web.calls import Calls
from shared.web.connections import BrowserConnections
from shared.web.site import Site

_log = structlog.get_logger(__name__)
_LIMITS = GateLimits(calls_per_second=50.0, calls_at_once=16)
"""Limits of one subject, or of one host where no token is asked for. An open page makes less than one call a second."""
_REMEDY = "enter one that the file of web.tokens lists; `cloud-trainer token NAME --file FILE --scope read` adds one"


class _Tls(NamedTuple):
    """A server's end of TLS, and the names by which its certificate knows it."""

    context: ssl.SSLContext
    names: tuple[str, ...]


@asynccontextmanager
async def serving_page(
    config: WebConfig, service: ServiceDescriptor, handlers: grpc.GenericRpcHandler
) -> AsyncIterator[None]:
    """Serve the page of a control service at `web.listen` while the block runs. The log says where.

    handlers: of the service, as its gRPC server has them. Raises ListenError, and ConfigError for files that cannot be used.
    """
    assert config.listen is not None, "there is a page"
    tls = None
    if config.certificate is not None and config.key is not None:
        files = TlsFiles(config.certificate, config.key, None, "web")
        tls = Reloaded(files.paths, lambda: _read_tls(files))
    gate = _gate(config, scopes_of(service))
    scheme = "http" if tls is None else "https"
    site = Site(
        service.full_name, Calls(service, handlers, gate), scheme, lambda: () if tls is None else tls.get().names
    )
    connections = BrowserConnections(site.answer, None if tls is None else lambda: tls.get().context)
    with _listening(config.listen) as listening:
        host, _, _ = config.listen.rpartition(":")
        _log.info("page", address=f"{scheme}://{host}:{listening.getsockname()[1]}/")
        work = [connections.accept(listening), *([gate.keep_watch(_nothing)] if config.tokens is not None else [])]
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _nothing() -> None:
    """Report nothing: what the gate finds it acts on by itself."""


def _gate(config: WebConfig, scopes: Mapping[str, Scope]) -> Gate:
    book, tokens = None, config.tokens
    if tokens is not None:
        book = Reloaded([tokens], lambda: read_tokens(tokens, "web.tokens"), TokenBook(), "nobody new is admitted")
    return Gate(Authenticator(book, certificates=False, remedy=_REMEDY), scopes, _LIMITS)


def _listening(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        listening = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=64)
    except OSError as cause:
        raise ListenError(f"web.listen: cannot listen on {listen}: {cause.strerror or cause}") from cause
    listening.setblocking(False)
    return listening


def _read_tls(files: TlsFiles) -> _Tls:
    """Read a certificate and its key. Raises ConfigError."""
    from shared.transport.auth import pem  # 8 MB, needed only with files of TLS

    own, certificate = read_material(files).own, files.certificate
    assert own is not None, "both files are set"
    assert certificate is not None, "as above"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, files.key)
    except OSError as cause:
        raise ConfigError(f"web.certificate: {certificate} cannot be used: {cause}") from cause
    return _Tls(context, pem.hosts_of(pem.certificates(own[1], "web.certificate", certificate)[0]))
