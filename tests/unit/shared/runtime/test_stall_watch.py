"""The watch over a peer that owes an answer."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.runtime import StallWatch
from tests.support.virtual import run_virtually

LIMIT_SECONDS = 10.0


def told_seconds(silent_from: list[float], until_seconds: float, stop_seconds: float | None = None) -> list[float]:
    """Return the times at which a watch reported a stall, of a peer that last spoke at one of these times each."""

    async def main() -> list[float]:
        loop, told = asyncio.get_running_loop(), []
        began = loop.time()

        def quiet_seconds() -> float:
            heard = [moment for moment in silent_from if moment <= loop.time() - began]
            return loop.time() - began - max(heard) if heard else 0.0

        watch = StallWatch(quiet_seconds, LIMIT_SECONDS, lambda _: told.append(loop.time() - began))
        if stop_seconds is not None:
            loop.call_later(stop_seconds, watch.stop)
        await asyncio.sleep(until_seconds)
        return told

    return run_virtually(main)


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 9.5), min_size=1, max_size=8))
def test_a_stall_is_told_once_and_as_soon_as_it_is_one(pauses):
    spoke = [sum(pauses[: count + 1]) for count in range(len(pauses))]
    (told,) = told_seconds(spoke, spoke[-1] + 5 * LIMIT_SECONDS)
    assert told - spoke[-1] + 1e-6 >= LIMIT_SECONDS
    assert told - spoke[-1] < LIMIT_SECONDS * 1.02


def test_a_peer_that_owes_nothing_may_be_silent_for_ever():
    assert told_seconds([], 1000 * LIMIT_SECONDS) == []


def test_a_watch_that_was_stopped_tells_nothing():
    assert told_seconds([0.0], 5 * LIMIT_SECONDS, stop_seconds=9.0) == []
