"""Work that is repeated whatever it raises, and work that lasts as long as a body."""

import asyncio

import pytest
import structlog.testing

from shared.concurrency.tasks import gathered, meanwhile, repeat
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


async def test_a_caller_that_is_cancelled_while_a_failure_ends_the_others_stays_cancelled():
    ending = asyncio.Event()

    async def fail():
        raise ValueError("a defect")

    async def end_slowly():
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.Event().wait()

    caller = asyncio.create_task(gathered(end_slowly(), fail()))
    await ending.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_cancelled_caller_waits_for_what_its_tasks_do_at_their_end():
    begun, ended = asyncio.Event(), []

    async def end_slowly(number, turns):
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(turns):
                await asyncio.sleep(0)
            ended.append(number)

    caller = asyncio.create_task(gathered(end_slowly(0, 1), end_slowly(1, 9)))
    await begun.wait()
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [0, 1]


class TestMeanwhile:
    """Work that lasts as long as a body."""

    async def test_it_ends_with_the_body(self):
        ended = []

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("work")

        async with meanwhile(work()):
            await asyncio.sleep(0)
            assert ended == []
        assert ended == ["work"]

    async def test_its_failure_ends_the_body_at_once(self):
        async def fail():
            raise ValueError("a defect")

        with pytest.raises(ValueError, match="a defect"):
            async with meanwhile(fail()):
                await asyncio.Event().wait()

    async def test_a_failure_of_the_body_stays_what_it_is(self):
        with pytest.raises(KeyError, match="of the body"):
            async with meanwhile(asyncio.Event().wait()):
                raise KeyError("of the body")

    async def test_a_cancellation_while_the_work_tidies_up_takes_effect(self):
        tidying, tidied = asyncio.Event(), asyncio.Event()

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                tidying.set()
                await tidied.wait()

        async def body():
            async with meanwhile(work()):
                await asyncio.sleep(0)

        running = asyncio.create_task(body())
        await tidying.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        tidied.set()
