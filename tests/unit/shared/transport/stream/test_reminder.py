"""Reminders: one comes when a message has waited for its time, and none for messages that are gone."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.transport.stream.reminder import Reminder
from tests.support.virtual import run_virtually

SECONDS = 1.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=20))
def test_it_comes_only_for_a_message_that_waits_too_long(spans):
    """spans: pairs of a time without a waiting message, and of a time for which one would wait without a reminder."""

    async def main():
        loop, reminded, expected = asyncio.get_running_loop(), [], []
        reminder = Reminder(SECONDS, lambda: reminded.append(loop.time()))
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
        reminded = 0

        def remind():
            nonlocal reminded
            reminded += 1

        reminder = Reminder(SECONDS, remind)
        for times in (1, 2):
            reminder.begin()
            await asyncio.sleep(3 * SECONDS)
            assert reminded == times

    run_virtually(main)
