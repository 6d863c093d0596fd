"""Work that is repeated whatever it raises."""

import asyncio

import structlog.testing

from shared.concurrency.tasks import repeat
from tests.support.virtual import run_virtually


def test_work_that_fails_is_done_again_and_said_to_fail_once_in_a_row():
    fails = [True, True, False, False, True, False]
    calls = iter(fails)

    async def work() -> None:
        if next(calls):
            raise ValueError("a defect")

    async def main() -> None:
        repeating = asyncio.create_task(repeat("the work", work, 1.0))
        await asyncio.sleep(len(fails) - 0.5)
        repeating.cancel()

    with structlog.testing.capture_logs() as logs:
        run_virtually(main)
    assert next(calls, None) is None, "it was done as often as it was due"
    assert [entry["event"] for entry in logs] == ["the work failed; it goes on"] * 2
