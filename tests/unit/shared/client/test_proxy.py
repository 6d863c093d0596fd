"""The proxy through which an address is dialled: gRPC's own answer, but for this machine, and what is told of it."""

import asyncio

import pytest

from shared.client.credentials import PLAIN
from shared.client.proxy import open_way, proxy_for, through_proxy
from tests.support.peers.connect_proxy import connect_proxy
from tests.support.running import held_port

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")
FAR = "trainer.example:50051"
PROXY = "PROXY"
"""Stands for the URL of the proxy that listens."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "address", "is_proxied"),
    [
        ({}, FAR, False),
        ({"http_proxy": PROXY}, FAR, True),
        ({"https_proxy": PROXY}, FAR, True),
        ({"grpc_proxy": PROXY}, FAR, True),
        ({"grpc_proxy": "", "http_proxy": PROXY}, FAR, False),
        ({"https_proxy": PROXY, "http_proxy": "http://127.0.0.1:1"}, FAR, True),
        ({"HTTP_PROXY": PROXY}, FAR, False),
        ({"http_proxy": PROXY, "no_proxy": "other.example, example"}, FAR, False),
        ({"http_proxy": PROXY, "no_proxy": "EXAMPLE"}, FAR, False),
        ({"http_proxy": PROXY, "no_proxy": "*"}, FAR, True),
        ({"http_proxy": PROXY, "no_proxy": "other.example"}, FAR, True),
        ({"http_proxy": PROXY, "no_proxy": ""}, FAR, True),
        ({"http_proxy": PROXY, "no_proxy": "example", "no_grpc_proxy": "other"}, FAR, True),
        ({"http_proxy": PROXY, "no_grpc_proxy": "example"}, FAR, False),
        ({"http_proxy": PROXY}, "192.0.2.7:50051", True),
        ({"http_proxy": PROXY, "no_proxy": "192.0.2.0/24"}, "192.0.2.7:50051", False),
        ({"http_proxy": PROXY, "no_proxy": "192.0.3.0/24"}, "192.0.2.7:50051", True),
        ({"http_proxy": PROXY}, "[2001:db8::7]:50051", True),
        ({"http_proxy": PROXY, "no_proxy": "2001:db8::/32"}, "[2001:db8::7]:50051", False),
        ({"http_proxy": "socks5://127.0.0.1:1"}, FAR, False),
        ({"http_proxy": "127.0.0.1:1"}, FAR, False),
        ({"http_proxy": PROXY}, "127.0.0.1:50051", False),
        ({"http_proxy": PROXY}, "127.9.9.9:50051", False),
        ({"http_proxy": PROXY}, "localhost:50051", False),
        ({"http_proxy": PROXY}, "[::1]:50051", False),
    ],
)
async def test_our_channels_use_the_proxy_that_is_told_and_no_other(monkeypatch, environment, address, is_proxied):
    with held_port() as nobody:
        async with connect_proxy(nobody, answer="403 Forbidden") as proxy:
            for name, value in environment.items():
                monkeypatch.setenv(name, value.replace(PROXY, f"http://127.0.0.1:{proxy.port}"))
            assert (proxy_for(address) is not None) is is_proxied
            channel = PLAIN.channel(address, [("grpc.initial_reconnect_backoff_ms", 100)])
            channel.get_state(try_to_connect=True)
            if is_proxied:
                head = await asyncio.wait_for(proxy.asked.get(), 30)
                assert head.startswith(f"CONNECT {address} HTTP/1.1\r\n".encode())
            else:
                call = channel.unary_unary("/nothing/Nothing")(b"", timeout=0.2)
                await asyncio.wait_for(call.code(), 30)  # an address of documentation swallows what is sent
                assert proxy.asked.empty()
            await channel.close()


async def test_what_is_dialled_without_grpc_asks_the_proxy_as_grpc_does(monkeypatch):
    with held_port() as nobody:
        async with connect_proxy(nobody, answer="403 Forbidden") as proxy:
            monkeypatch.setenv("http_proxy", f"http://Aladdin:open%20sesame@127.0.0.1:{proxy.port}/")
            channel = PLAIN.channel(FAR, [])
            channel.get_state(try_to_connect=True)
            by_grpc = await asyncio.wait_for(proxy.asked.get(), 30)
            await channel.close()
            while not proxy.asked.empty():  # it tries again
                proxy.asked.get_nowait()
            with pytest.raises(OSError, match=r"it answers 'HTTP/1\.1 403 Forbidden'"):
                await open_way("trainer.example", 50051)
            by_us = proxy.asked.get_nowait()
    assert credentials_in(by_us) == credentials_in(by_grpc) == b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


def credentials_in(head):
    (line,) = [line for line in head.split(b"\r\n") if line.startswith(b"Proxy-Authorization:")]
    return line.partition(b":")[2].strip()


async def test_a_proxy_is_told_without_its_credentials(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example:3128")
    assert through_proxy(FAR) == f"{FAR} (through the proxy of https_proxy=http://proxy.example:3128)"
    assert through_proxy("localhost:1") == "localhost:1"
