"""Connections to a trainer's port that are no call of ours: an event with the address, counted, and never too many."""

import asyncio
import json
import socket
import ssl
import urllib.request
from contextlib import contextmanager

import grpc
import pytest

from cloud_trainer.control.certificates import make_authority
from tests.support.peers.strangers import Doorkeeper, Peer, path_of
from tests.support.running import heard_trainer_process

HTTP = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GARBAGE = b"\x00\x01garbage\r\n\r\n" * 5
METRICS = "metrics.listen=127.0.0.1:0"


@contextmanager
def trainer(*flags):
    with heard_trainer_process("compute.threads=1", METRICS, *flags, begun_by_python=True) as (_, address, said):
        (metrics,) = [entry["address"] for entry in said.heard if entry["event"] == "metrics"]
        yield address, said, lambda: failed_handshakes(metrics)


def failed_handshakes(metrics):
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    (count,) = [line.split()[1] for line in lines if line.startswith("isthmus_failed_handshakes_total ")]
    return float(count)


def sent(address, data, prepare=lambda door: door, host_of="127.0.0.1"):
    """Send this, wait until one side ends the connection, and return the address of this peer as the trainer sees
    it."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20, (host_of, 0)) as door:
        came = "ipv4:{}:{}".format(*door.getsockname())
        try:
            with prepare(door) as prepared:
                prepared.sendall(data)
                prepared.settimeout(20)
                while prepared.recv(4096):
                    pass
        except (OSError, ssl.SSLError):
            pass
    return came


def as_tls(context):
    return lambda door: context.wrap_socket(door, server_hostname="localhost")


def trusting_nobody():
    return ssl.create_default_context()


def without_certificate(folder):
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


@pytest.mark.slow
def test_each_handshake_that_fails_is_an_event_with_the_address_and_the_reason(tmp_path):
    door = Doorkeeper(tmp_path)
    with trainer(*door.flags) as (address, said, count):
        for prepare, data, reason in [
            (lambda plain: plain, GARBAGE, "it does not speak TLS"),
            (lambda plain: plain, HTTP, "it speaks HTTP without TLS"),
            (as_tls(trusting_nobody()), b"", "trust this trainer's certificate"),
            (as_tls(without_certificate(tmp_path)), b"", "it showed no certificate"),
        ]:
            came = sent(address, data, prepare)
            told = said.first_event("handshake failed")
            assert (told["peer"], told["level"]) == (came, "warning")
            assert reason in told["reason"]
        assert count() == 4


@pytest.mark.full
def test_what_connects_to_a_port_without_tls_and_makes_no_call_is_an_event_too():
    with trainer() as (address, said, count):
        came = {
            sent(address, GARBAGE, host_of="127.0.0.2"),
            sent(address, HTTP, host_of="127.0.0.3"),
            sent(address, b"", as_tls(trusting_nobody()), host_of="127.0.0.4"),
        }
        told = [said.first_event("handshake failed") for _ in came]
        assert {each["peer"] for each in told} == came
        assert all("made no call" in each["reason"] for each in told)
        assert count() == 3


@pytest.mark.full
def test_who_makes_a_call_is_no_such_event_even_if_it_is_refused(tmp_path):
    door = Doorkeeper(tmp_path)
    with trainer(*door.flags) as (address, said, count):
        stranger = Peer(door.credentials(), "no such token")
        assert asyncio.run(stranger.code(address, path_of("GetSession"), b"")) is grpc.StatusCode.UNAUTHENTICATED
        refused = said.first_event("call refused")
        assert refused["peer"].startswith("ipv4:127.0.0.1")
        other = make_authority("somebody's", 1)
        foreign = Peer(door.credentials(other), None)
        assert asyncio.run(foreign.code(address, path_of("GetSession"), b"")) is grpc.StatusCode.UNAVAILABLE
        assert "tls.ca has signed" in said.first_event("handshake failed")["reason"]
        assert count() >= 1  # gRPC dials again by itself


@pytest.mark.slow
def test_a_flood_is_counted_and_fills_no_log(tmp_path):
    door = Doorkeeper(tmp_path)
    with trainer(*door.tls_flags) as (address, said, count):
        for _ in range(300):
            sent(address, GARBAGE)
        first = said.first_event("handshake failed")
        assert first["reason"] == "it does not speak TLS"
        while count() < 300:
            pass
    said.join()
    lines = [json.loads(line) for line in said.last_lines]
    assert sum(line["event"] == "handshake failed" for line in lines) + 1 <= 3
