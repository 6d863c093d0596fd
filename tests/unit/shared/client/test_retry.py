"""Retries: as long as the user allows, and no sooner than the trainer asked for."""

import asyncio
import time
from functools import partial

import pytest

from shared.client.retry import SOON_WAIT_SECONDS, Retry, Spacing
from shared.errors import BusyError, UnreachableError, VersionError
from shared.version import PROTOCOL_VERSION
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


@pytest.mark.parametrize("theirs", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_a_trainer_one_version_ahead_or_behind_is_waited_for_also_while_it_is_started_again(theirs):
    told = []

    async def main():
        retry = Retry(20.0, lambda event: told.append(event.reasons), upgrade_wait_seconds=3600.0)
        began = time.monotonic()

        async def attempt():
            away_seconds = time.monotonic() - began
            if away_seconds < 10:
                raise UnreachableError("it is away")
            if away_seconds < 3000:
                raise VersionError("it is another one", theirs)
            if away_seconds < 3010:
                raise UnreachableError("it is started again")
            return away_seconds

        return await retry.run(attempt)

    assert 3010 <= run_virtually(main) < 3600
    assert told == [("it is away",), ("it is another one",), ()]


@pytest.mark.parametrize(("theirs", "seconds"), [(PROTOCOL_VERSION + 1, 3600.0), (PROTOCOL_VERSION + 2, 0.0), (0, 0.0)])
def test_an_upgrade_that_does_not_come_is_waited_for_as_long_as_allowed_and_a_far_version_not_at_all(theirs, seconds):
    async def main():
        began = time.monotonic()

        async def attempt():
            raise VersionError("it is another one", theirs)

        with pytest.raises(VersionError):
            await Retry(None, upgrade_wait_seconds=3600.0).run(attempt)
        return time.monotonic() - began

    assert run_virtually(main) == pytest.approx(seconds)
