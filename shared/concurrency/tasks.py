"""Tasks that stand and fall together, and such as stand for as long as something else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

_log = structlog.get_logger(__name__)


async def gathered(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """Run all, and return their results, in order. The first failure cancels the others, and its error is raised.

    asyncio.TaskGroup does the same and wraps the error in a group, which callers of ours would only unwrap again.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return [task.result() for task in tasks]


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do some work while the body runs, and end it then. An error of the work ends the body at once, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__


async def repeat(what: str, work: Callable[[], Awaitable[None]], every_seconds: float) -> None:
    """Do some work again and again, for as long as this is awaited.

    An error of it is a defect, which must not prevent the next time. It is logged, once in a row.
    """
    failed = False
    while True:
        try:
            await work()
            failed = False
        except Exception:
            if not failed:
                _log.exception(f"{what} failed; it goes on", every_seconds=every_seconds)
            failed = True
        await asyncio.sleep(every_seconds)
