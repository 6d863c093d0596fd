"""Retries: as long as the user allows, and no sooner than the trainer asked for."""

import asyncio
import time
from functools import partial

import pytest

from shared.client.retry import SOON_WAIT_SECONDS, Retry, Spacing
from shared.errors import BusyError, UnreachableError
from tests.support.virtual import run_virtually


@pytest.mark.parametrize("kind", [UnreachableError, BusyError])
async def test_no_retry_is_sooner_than_the_trainer_asked(kind):
    asked = []

    async def attempt():
        asked.append(1)
        raise kind("in half an hour", 1800.0)

    with pytest.raises(kind, match="in half an hour"):
        await Retry(give_up_seconds=60.0).run(attempt)
    assert len(asked) == 1, "the answer would come after the time that the user allows"


async def test_each_call_that_waits_has_its_own_reason():
    told, both, back = [], asyncio.Event(), {name: asyncio.Event() for name in ("near", "far")}

    def note(event):
        told.append(event.reasons)
        if len(event.reasons) == 2:
            both.set()

    retry = Retry(None, note)

    async def attempt(name):
        if not back[name].is_set():
            raise UnreachableError(f"{name} cannot be reached")

    waiting = {name: asyncio.create_task(retry.run(partial(attempt, name))) for name in back}
    await both.wait()
    assert set(retry.reasons) == {"near cannot be reached", "far cannot be reached"}
    back["near"].set()
    await waiting["near"]
    assert retry.reasons == told[-1] == ("far cannot be reached",)
    waiting["far"].cancel()
    await asyncio.wait({waiting["far"]})
    assert retry.reasons == told[-1] == ()


def test_losses_at_one_place_are_retried_less_and_less_often_and_at_once_after_progress():
    async def main():
        spacing, waited = Spacing(), []

        async def wait(place, told_seconds=0.0):
            began = time.monotonic()
            await spacing.wait(place, told_seconds)
            waited.append(time.monotonic() - began)

        for _ in range(200):
            await wait("here")
        await wait("further")
        await wait("here")
        await wait("here, and busy", 7.0)
        return waited

    *here, further, again, busy = run_virtually(main)
    assert here[0] == further == again == 0
    assert busy == pytest.approx(7.0)
    assert max(here[1:10]) <= SOON_WAIT_SECONDS < sum(here[1:]) / 10
