"""Cost of open pages in a step of 0.1 MB: `python -m benchmarks.pages [PAIRS]`. Goal: at most 1.01 with five pages.

One run serves its page all the time. Another process looks at it in every second window, as open pages do, or as a hundred
readers do that take a byte a second; ratios are taken within a pair of windows, so that what else the machine does falls on
both alike. The ratio of windows in which nobody ever looks is the noise.
"""

import itertools
import json
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from multiprocessing.synchronize import Event
from typing import Any

import structlog
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.overhead import CASES, config
from benchmarks.support.machine import machine
from benchmarks.support.processes import trainer_process
from benchmarks.support.report import Spread
from isthmus import train
from shared.web.site import PAGE

CASE, PAIRS = "0.1 MB", 10
WINDOW_STEPS = 1500
EVERY_SECONDS, SELDOM = 2.0, 5
"""Seconds between two looks of the page, and looks between two at what changes seldom (`shared/web/page.html`)."""
SERVICE = "/isthmus.v1.EdgeControlService/"
NOBODY, PAGES, SLOW = "nobody", "five pages", "a hundred slow readers"


def look(connection: HTTPConnection, looks: int, newest: dict[str, Any]) -> None:
    """Ask what an open page asks for after so many looks. newest: the request for the rows after those that it has."""
    for method, request in (("GetStatus", {}), ("GetHistory", newest))[: 2 if looks % SELDOM == 0 else 1]:
        connection.request("POST", SERVICE + method, json.dumps(request), {"Content-Type": "application/json"})
        answer = json.load(connection.getresponse())
        if rows := answer.get("rows"):
            newest["after"] = rows[-1]


def look_as_a_page(port: int, is_on: Event) -> None:
    """Look again and again, while the event is set."""
    connection, newest = HTTPConnection("127.0.0.1", port), dict[str, Any]()
    for looks in itertools.count():
        is_on.wait()
        look(connection, looks, newest)
        time.sleep(EVERY_SECONDS)


def read_slowly(port: int, is_on: Event) -> None:
    """Ask for the page again and again, and take a byte of it each second, while the event is set."""
    while True:
        is_on.wait()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while is_on.is_set() and connection.recv(1):
                time.sleep(1.0)
        time.sleep(1.0)


READERS: dict[str, tuple[int, Callable[[int, Event], None]]] = {
    NOBODY: (0, look_as_a_page),
    PAGES: (5, look_as_a_page),
    SLOW: (100, read_slowly),
}


def readers(kind: str, port: int, is_on: Event) -> None:
    """Be all readers of a kind, until this process is ended."""
    count, read = READERS[kind]
    for _ in range(count):
        threading.Thread(target=read, args=(port, is_on), daemon=True).start()
    threading.Event().wait()


def ratios(kind: str, address: str, pairs: int) -> tuple[list[float], list[float]]:
    """Measure one run; returns for each pair of windows, looked at over not, the ratio of steps and of processor seconds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = multiprocessing.get_context("spawn")
    is_on = told.Event()
    process = told.Process(target=readers, args=(kind, port, is_on), daemon=True)
    process.start()
    moments: list[tuple[float, float]] = []
    windows: list[tuple[float, float]] = []

    def stepped(_progress: object) -> None:
        moments.append((time.perf_counter(), time.process_time()))
        if len(moments) > WINDOW_STEPS:
            steps = statistics.median(after - before for (before, _), (after, _) in itertools.pairwise(moments))
            windows.append((steps, (moments[-1][1] - moments[0][1]) / WINDOW_STEPS))
            moments.clear()
            (is_on.set if len(windows) % 2 and len(windows) <= 2 * pairs else is_on.clear)()

    steps = (WINDOW_STEPS + 1) * (2 * pairs + 1)  # the first window warms up
    try:
        more = (f"web.listen=127.0.0.1:{port}", f"training.max_steps={steps}", f"training.epochs={steps}")
        train(config(*CASES[CASE], address, *more), stepped)
    finally:
        process.terminate()
        process.join()
    looked, not_looked = windows[1::2], windows[2::2]
    both = list(zip(looked, not_looked, strict=True))
    return [one[0] / other[0] for one, other in both], [one[1] / other[1] for one, other in both]


def main() -> None:
    """Measure all kinds of readers and print the table."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))  # warnings
    torch.set_num_threads(1)
    table = Table("who looks", "step, looked at / not", "processor time, looked at / not")
    with trainer_process("compute.threads=1", "compute.device=cpu") as address:
        for kind in READERS:
            steps, processor = ratios(kind, address, pairs)
            table.add_row(kind, Spread.of(steps).show(1, 3), Spread.of(processor).show(1, 3))
    console = Console(width=120)
    console.print(
        f"{CASE} features, a page of {PAGE.stat().st_size} bytes; {pairs} pairs of {WINDOW_STEPS} steps, median (quartiles); "
        f"{machine()}"
    )
    console.print(table)


if __name__ == "__main__":
    main()
