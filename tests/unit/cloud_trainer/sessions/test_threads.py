"""The threads of one trainer."""

import asyncio
import threading
from contextlib import suppress

from cloud_trainer.sessions.threads import TrainerThreads


async def test_all_threads_are_told_to_end_before_any_is_waited_for():
    threads, begun, dropped = TrainerThreads(), threading.Barrier(3), threading.Event()

    def compute_until_dropped():
        begun.wait(60)
        dropped.wait(60)

    running = [
        asyncio.create_task(lane("one").run(compute_until_dropped))
        for lane in (threads.compute_lane, threads.codec_lane)
    ]
    await asyncio.to_thread(begun.wait, 60)
    waiting = asyncio.create_task(threads.codec_lane("one").run(lambda: None))
    waiting.add_done_callback(
        lambda _: dropped.set()
    )  # The first thread must not wait for the one that is closed last.
    await asyncio.sleep(0)
    assert await asyncio.to_thread(threads.close, 30)
    await asyncio.gather(*running)
    with suppress(asyncio.CancelledError):
        await waiting
