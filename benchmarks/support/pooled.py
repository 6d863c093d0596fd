"""Trainings several at a time, each in a process: a step of so small a network is mostly Python."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any, TypeVar

J = TypeVar("J")
R = TypeVar("R")


def run_pooled(
    jobs: Iterable[J],
    run: Callable[[J], R],
    workers: int,
    stop_seconds: float,
    begin: Callable[..., None],
    *arguments: Any,
) -> Iterator[R]:
    """Results as they come.

    stop_seconds: after which no further job starts. begin: what each process does first, with these arguments.
    """
    started = time.monotonic()
    waiting = iter(jobs)
    running: set[Future[R]] = set()
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=begin, initargs=arguments) as pool:
        while True:
            free = workers - len(running) if time.monotonic() - started < stop_seconds else 0
            running |= {pool.submit(run, job) for job in itertools.islice(waiting, free)}
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in ended)
