"""Work that something else may make futile: it is watched while the work is under way."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
