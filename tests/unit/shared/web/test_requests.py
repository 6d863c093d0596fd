"""Requests from anybody: what is not understood or too large is refused, and a peer that waits costs a place at most."""

import asyncio
import select
import socket
import sys
from http.client import HTTPConnection

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.web import connections
from shared.web.requests import MOST_BODY_BYTES, MOST_HEAD_BYTES
from shared.wire.isthmus.v1 import control_pb2 as pb
from tests.support.browser import SERVICE, NothingBehind, answer, get, post, served


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nhost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost : localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n", 400),
        (get(x="y" * MOST_HEAD_BYTES), 431),
        (post("Pause", b"", content_length=MOST_BODY_BYTES + 1), 413),
        (post("Pause", b"", content_length="1e3"), 400),
        (post("Pause", b"", content_length="-1"), 400),
        (post("Pause", b"2\r\n{}\r\n0\r\n\r\n", content_length=None, transfer_encoding="chunked"), 411),
        *((get().replace(b"GET", method), 405) for method in (b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"TRACE")),
    ],
)
async def test_what_is_not_understood_is_refused_before_anything_is_done(sent, status):
    behind = NothingBehind()
    async with served(behind) as page:
        assert (await page.ask(sent)).status == status
        assert (await page.ask(get())).status == 200
    assert behind.calls == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(st.data())
def test_no_bytes_are_a_defect(data):
    good = post("Pin", '{"cut": 2}')
    start, end = sorted((data.draw(st.integers(0, len(good))), data.draw(st.integers(0, len(good)))))
    sent = good[:start] + data.draw(st.binary(max_size=40)) + good[end:] + b"\r\n\r\n"

    async def ask():
        async with served(NothingBehind()) as page:
            reader, writer = await page.connected()
            writer.write(sent)
            writer.write_eof()
            said = await answer(reader)
            writer.transport.abort()
            return None if said is None else said.status

    assert asyncio.run(ask()) in {None, 200, 400, 403, 404, 405, 411, 413, 415}


async def test_a_hundred_who_send_nothing_keep_nobody_out_and_hold_no_more_than_the_places():
    async with served(NothingBehind()) as page:
        idle = [await page.connected() for _ in range(100)]
        assert (await page.ask(post("GetStatus"))).status == 200
        gone = [await reader.read() for reader, _ in idle[: 100 - connections.MOST_WAITING]]
        assert gone == [b""] * len(gone)
        for _, writer in idle:
            writer.transport.abort()


class Long(NothingBehind):
    """A service whose answer is more than the kernel takes for a peer that does not read."""

    async def list_sessions(self, _request):
        session = pb.EdgeSessionStatus(model="x" * 8_000_000)
        return pb.EdgeControlServiceListSessionsResponse(sessions=[session])


async def test_who_does_not_read_is_given_up_and_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(connections, "WAIT_SECONDS", 2.0)
    async with served(Long()) as page:
        slow = [socket.socket() for _ in range(3)]
        for each in slow:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(("localhost", page.port))
            each.sendall(post("ListSessions"))
        assert (await page.ask(get())).status == 200
        for each in slow:
            reset = select.poll()
            reset.register(each, 0)  # of the error alone: nothing is read
            assert await asyncio.to_thread(reset.poll, 30_000)
            each.close()


async def test_many_who_ask_at_once_keep_nobody_out():
    async with served(NothingBehind()) as page:
        others = [socket.create_connection(("localhost", page.port)) for _ in range(60)]  # before the first is accepted
        for each in others:
            each.sendall(get())
        assert (await page.ask(post("GetStatus"))).status == 200
        for each in others:
            each.close()


async def test_who_sends_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(connections, "WAIT_SECONDS", 0.05)
    async with served(NothingBehind()) as page:
        reader, writer = await page.connected()
        writer.write(get()[:-4])
        assert await reader.read() == b""
        writer.transport.abort()


async def test_one_connection_has_many_requests_and_ends_when_it_is_to():
    async with served(NothingBehind()) as page:
        reader, writer = await page.connected()
        for request in (get(), post("GetStatus"), get(connection="close")):
            writer.write(request)
            assert (await answer(reader)).status == 200
        assert await reader.read() == b""


class Paused(NothingBehind):
    """A service whose pause never comes."""

    def __init__(self):
        super().__init__()
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def pause(self, _request):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_a_call_ends_with_its_connection_and_all_with_the_page():
    behind = Paused()
    async with served(behind) as page:
        _, writer = await page.connected()
        writer.write(post("Pause"))
        await behind.began.wait()
        writer.transport.abort()
        await behind.ended.wait()
        behind.began.clear()
        behind.ended.clear()
        reader, writer = await page.connected()
        writer.write(post("Pause"))
        await behind.began.wait()
    assert behind.ended.is_set()
    assert await answer(reader) is None


async def test_calls_of_one_host_that_are_under_way_have_a_bound():
    behind = Paused()
    async with served(behind) as page:
        writers = []
        for _ in range(16):
            _, writer = await page.connected()
            writer.write(post("Pause"))
            await behind.began.wait()
            behind.began.clear()
            writers.append(writer)
        refused = await page.ask(post("GetStatus"))
        assert (refused.status, refused.json["code"]) == (429, "resource_exhausted")
        for writer in writers:
            writer.transport.abort()


async def test_an_answer_is_what_the_contract_says_in_json():
    class Stands(NothingBehind):
        async def get_status(self, _request):
            return pb.EdgeControlServiceGetStatusResponse(status=pb.EdgeStatus(model="<script>", step=7))

    async with served(Stands()) as page:
        said = await page.ask(post("GetStatus"))
        assert said.headers["content-type"] == "application/json"
        assert said.json == {"status": {"model": "<script>", "step": "7"}}


PAGES, MOST_CALLS = 5, 500
"""Pages that are open at a time, and most calls of Python's functions that a status may take, about as many as a step."""


async def test_a_status_that_open_pages_ask_for_takes_few_calls():
    workers = [pb.WorkerStatus(name=name, blocks=["0:2", "7:9"], step=41) for name in ("edge", "near", "far")]
    links = [pb.LinkStatus(sender="edge", receiver="near", bits_per_second=12.5e6)] * 4
    told = pb.EdgeStatus(model="net", step=41, workers=workers, links=links, queues=pb.EdgeQueues(compute=7))

    class Stands(NothingBehind):
        async def get_status(self, _request):
            return pb.EdgeControlServiceGetStatusResponse(status=told)

    def look(pages):
        for page in pages:
            page.request("POST", f"/{SERVICE.full_name}/GetStatus", "{}", {"Content-Type": "application/json"})
            assert b"far" in page.getresponse().read()

    calls = []
    async with served(Stands()) as page:
        pages = [HTTPConnection("localhost", page.port) for _ in range(PAGES)]
        await asyncio.to_thread(look, pages)
        sys.setprofile(lambda _frame, event, _argument: calls.append(event) if event == "call" else None)
        try:
            await asyncio.to_thread(look, pages)
        finally:
            sys.setprofile(None)
        for each in pages:
            each.close()
    assert len(calls) <= PAGES * MOST_CALLS
