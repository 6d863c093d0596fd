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

    asyncio.TaskGroup wraps the error in a group, and before Python 3.13 it loses a cancellation of its caller that comes with
    a failure.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():  # a second time would interrupt what it does at its end
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_cancelled() -> bool:
    """Tell whether somebody has cancelled the task that asks. Something that it awaits may have been, without it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_unless_failed(work: Coroutine[Any, Any, T], *failures: "asyncio.Future[None]") -> T:
    """Do `work`, unless one of `failures` ends: then the work is cancelled, and the error of that one is raised."""
    task = asyncio.create_task(work)
    try:
        ends: set[asyncio.Future[Any]] = {task, *failures}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for failure in failures:
            if failure.done():
                failure.result()
        return await task
    finally:
        task.cancel()
        await asyncio.wait({task})


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
