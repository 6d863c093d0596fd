"""The yardstick of open pages: its readers are answered as a page is."""

import asyncio
import threading
from http.client import HTTPConnection

from benchmarks.pages import look, read_slowly
from tests.support.browser import NothingBehind, served
from tests.support.running import ROOT


async def test_it_asks_for_what_the_page_asks_for():
    behind = NothingBehind()
    async with served(behind) as page:
        connection, newest = HTTPConnection("localhost", page.port), {}
        for looks in (0, 1, 4, 5):
            await asyncio.to_thread(look, connection, looks, newest)
        connection.close()
    often, seldom = "GetStatus", "GetHistory"
    assert [name for name, _ in behind.calls] == [often, seldom, often, often, often, seldom]
    assert "EVERY = 2000, SELDOM = 5" in (ROOT / "shared" / "web" / "page.html").read_text()


async def test_a_slow_reader_asks_for_the_page_and_holds_its_connection():
    asked = asyncio.get_running_loop().create_future()
    is_on = threading.Event()
    is_on.set()

    async def accept(reader, writer):
        asked.set_result(await reader.readline())
        await reader.read()  # until it goes
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    threading.Thread(target=read_slowly, args=(server.sockets[0].getsockname()[1], is_on), daemon=True).start()
    async with asyncio.timeout(60), server:
        assert (await asked).startswith(b"GET / ")
        is_on.clear()
