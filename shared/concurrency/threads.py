"""Work that must not run on the event loop: each kind, as torch, codecs, loading and disk, has a thread of its own.

One thread each, so that a phase of the pipeline never runs twice at once and torch's state has one owner.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """Calls functions elsewhere than on the event loop, one after the other, in the order of asking."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` and wait for its result. A call that has not begun when the caller goes away never begins."""


class Worker:
    """A thread that runs what the event loop gives it, one call after the other, in the order of giving."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        """prepare: called on the thread before anything else."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=prepare)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the thread and wait for its result."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Let the running call end, drop those that wait, and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
