"""The processes that other tests talk to, and their standard error."""

import socket
import subprocess
import sys

import pytest

from tests.support.running import StandardError, held_port

CHATTER = """
import sys
print("not an event")
print('{"event": "listening", "address": "here"}', file=sys.stderr)
for number in range(20000):
    print('{"event": "chatter", "number": %d, "more": "%s"}' % (number, "x" * 100), file=sys.stderr)
"""


def started(code):
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    return process, StandardError(process)


def test_a_process_that_says_more_than_a_pipe_holds_is_not_stopped_by_it():
    process, said = started(CHATTER)
    assert said.first_event("listening")["address"] == "here"
    assert process.wait(timeout=60) == 0
    said.join()
    assert len(said.last_lines) < 100
    assert '"number": 19999' in str(said)


def test_a_process_that_ends_before_the_awaited_event_is_quoted():
    _, said = started("import sys; sys.exit('the port is in use')")
    with pytest.raises(AssertionError, match="ended with 1 before it said 'listening': the port is in use"):
        said.first_event("listening")
    said.join()


def test_a_held_port_refuses_connections_until_a_server_of_ours_listens_there():
    with held_port() as port:
        for _ in range(2):  # A server that starts again.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
                pass
