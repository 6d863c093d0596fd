"""The HTTP proxy on the way to a trainer: the one that is configured, or that gRPC takes from the environment, for sentences,
and for what is dialled without gRPC.

An address of this machine is dialled itself (`shared/client/credentials.py`). For all others the rules are gRPC's own.
"""

import asyncio
import base64
import ipaddress
import os
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from shared.config import is_loopback

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The first of these that is set counts, also an empty one, which stands for no proxy."""
_EXEMPTING = ("no_grpc_proxy", "no_proxy")
"""The first of these that is set names hosts that are dialled themselves."""
NO_PROXY, SETTING = "none", "trainer.proxy"
"""The setting under which nothing is dialled through a proxy, and its key."""
_DEFAULT_PORT = 443
_ANSWER_BYTES = 16 * 1024
"""Longest head of a proxy's answer that is read."""


class ProxyRefusalError(OSError):
    """An answer of a proxy that opens no way to the address."""


class Proxy(NamedTuple):
    """A proxy, and the key or the variable of the environment that names it. credentials: "user:password", empty where there
    are none."""

    variable: str
    host: str
    port: int
    credentials: str

    def __str__(self) -> str:
        """Return the setting without the credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.variable}=http://{host}:{self.port}"


def proxy_for(address: str, setting: str | None = None) -> Proxy | None:
    """Return the proxy through which host:port is dialled; None where it is dialled itself. setting: see `trainer.proxy`."""
    variable = next((name for name in _VARIABLES if name in os.environ), None) if setting is None else SETTING
    if variable is None or setting == NO_PROXY or is_loopback(address):
        return None
    try:
        parts = urlsplit(os.environ[variable] if setting is None else setting)
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
    except ValueError:
        return None
    if parts.scheme != "http" or not host or _is_exempt(address.rpartition(":")[0].strip("[]")):
        return None
    return Proxy(variable, host, port, _credentials(parts))


def _credentials(parts: SplitResult) -> str:
    return unquote(parts.netloc.rpartition("@")[0])


def _is_exempt(host: str) -> bool:
    listed = next((os.environ[name] for name in _EXEMPTING if name in os.environ), "")
    entries = [entry.strip() for entry in listed.split(",") if entry]
    return any(host.lower().endswith(entry.lower()) or _is_in(host, entry) for entry in entries)


def _is_in(host: str, network: str) -> bool:
    """Tell whether a host is an address in a network like 10.0.0.0/8."""
    try:
        return "/" in network and ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def through_proxy(address: str, setting: str | None = None) -> str:
    """Return the address for a sentence: with the proxy through which it is dialled, if there is one."""
    proxy = proxy_for(address, setting)
    return address if proxy is None else f"{address} (through the proxy of {proxy})"


async def open_way(
    host: str, port: int, limit: int = _ANSWER_BYTES, setting: str | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a host by TCP as gRPC does: through the proxy, where there is one. limit: of the reader's buffer, in bytes.
    setting: see `trainer.proxy`.

    Raises OSError; ProxyRefusalError where the proxy opens no way.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    proxy = proxy_for(address, setting)
    if proxy is None:
        return await asyncio.open_connection(host, port, limit=limit)
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=limit)
    try:
        writer.write(_request(address, proxy.credentials))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as cause:
            raise ProxyRefusalError("it answers as no proxy does") from cause
        line = head.partition(b"\r\n")[0].decode("ascii", "replace")
        if line.split(" ")[1:2] != ["200"]:
            raise ProxyRefusalError(f"it answers {line[:100]!r}")
    except BaseException:
        writer.close()
        raise
    return reader, writer


def _request(address: str, credentials: str) -> bytes:
    encoded = base64.b64encode(credentials.encode()).decode()
    allowed = f"Proxy-Authorization: Basic {encoded}\r\n" if credentials else ""
    return f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{allowed}\r\n".encode()
