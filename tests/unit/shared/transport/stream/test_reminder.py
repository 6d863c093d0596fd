"""Reminders: one comes when a message has waited for its time, and none for messages that are gone."""

import asyncio
import gc
import weakref

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.transport.stream.reminder import Reminder
from tests.support.virtual import run_virtually

SECONDS = 1.0


class Owner:
    """An owner of a reminder that notes when it is reminded."""

    def __init__(self):
        self.reminded = []
        self.reminder = Reminder(SECONDS, self.remind)

    def remind(self):
        self.reminded.append(asyncio.get_running_loop().time())


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=20))
def test_it_comes_only_for_a_message_that_waits_too_long(spans):
    """spans: pairs of a time without a waiting message, and of a time for which one would wait without a reminder."""

    async def main():
        loop, owner, expected = asyncio.get_running_loop(), Owner(), []
        reminded, reminder = owner.reminded, owner.reminder
        for idle, waiting in spans:
            await asyncio.sleep(idle)
            began = loop.time()
            reminder.begin()
            reminder.begin()
            await asyncio.sleep(waiting)
            if waiting > SECONDS:
                expected.append(began + SECONDS)
            elif waiting < SECONDS:
                assert len(reminded) == len(expected)
            else:
                return  # the order of the two timers does not matter
            reminder.end()
        await asyncio.sleep(2 * SECONDS)
        assert [abs(was - due) < 1e-6 for was, due in zip(reminded, expected, strict=True)] == [True] * len(expected)

    run_virtually(main)


def test_a_message_that_still_waits_causes_another_reminder_after_a_new_begin():
    async def main():
        owner = Owner()
        for times in (1, 2):
            owner.reminder.begin()
            await asyncio.sleep(3 * SECONDS)
            assert len(owner.reminded) == times

    run_virtually(main)


def test_an_owner_goes_though_it_has_a_reminder_and_is_not_reminded_then():
    async def main():
        gc.disable()
        try:
            owner = Owner()
            reminded, gone = owner.reminded, weakref.ref(owner)
            owner.reminder.begin()
            del owner
            assert gone() is None
            await asyncio.sleep(2 * SECONDS)
            assert not reminded
        finally:
            gc.enable()

    run_virtually(main)
