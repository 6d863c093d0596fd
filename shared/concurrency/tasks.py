"""Tasks that stand and fall together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all until all have ended; the first to fail cancels the others, and its own error is raised.

    asyncio.TaskGroup does the same and wraps the error in a group, which callers of ours would only unwrap again.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
