"""Two months of outages: they cost an agent a bounded number of attempts and writes, and it trains at the end."""

from itertools import pairwise

import pytest

from shared.client.backoff import AWAY_SHARE
from shared.client.retry import LONGEST_WAIT_SECONDS, SOON_WAIT_SECONDS
from tests.support.outages import DAY_SECONDS, RETRY_SECONDS, live_through, weather

DAYS = 60.0
WEEK_SECONDS = 7 * DAY_SECONDS


@pytest.fixture(scope="module")
def months():
    """Simulate two months in which the trainer was silent, or had no room."""
    return live_through(weather(0, DAYS, ("silent", "busy")), DAYS * DAY_SECONDS)


@pytest.mark.slow
def test_it_is_attached_at_the_end_and_every_term_was_higher_than_the_one_before(months):
    assert months.attached
    assert months.seconds == pytest.approx(DAYS * DAY_SECONDS, abs=LONGEST_WAIT_SECONDS)
    assert len(months.absences) > 200
    assert all(earlier < later for earlier, later in pairwise(months.terms))


def test_nothing_is_written_while_nothing_changes(months):
    writes = {kind: {one.writes for one in months.absences if one.outage.kind == kind} for kind in ("silent", "busy")}
    assert writes["silent"] == {0}, "a link that is lost is dialled again, and no more"
    assert writes["busy"] == {1}, "for the join that ends the absence"


def test_attempts_become_rare_in_a_long_absence(months):
    week = max(months.absences, key=lambda absence: absence.outage.seconds)
    assert week.outage.seconds == WEEK_SECONDS
    assert week.attempts < 2000


def test_an_end_is_noticed_soon_after_a_short_absence_and_in_proportion_after_a_long_one(months):
    for absence in months.absences:
        told_seconds = RETRY_SECONDS if absence.outage.kind == "busy" else 0.0
        ceiling = max(SOON_WAIT_SECONDS, AWAY_SHARE * absence.outage.seconds)
        assert absence.late_seconds <= min(LONGEST_WAIT_SECONDS, ceiling) + told_seconds


def test_a_trainer_that_said_how_long_it_is_busy_is_left_alone_for_so_long(months):
    for absence in months.absences:
        if absence.outage.kind == "busy":
            assert absence.attempts <= 4 + absence.outage.seconds / RETRY_SECONDS, "a link before and one after"


def test_a_week_in_which_every_answer_is_lost_costs_fewer_than_2000_writes():
    outages = weather(0, 30.0, ("half",))
    week = next(outage for outage in outages if outage.seconds == WEEK_SECONDS)
    lost = type(week)(week.begin_seconds, week.seconds, "half")
    (absence,) = live_through([lost], week.begin_seconds + 2 * WEEK_SECONDS).absences
    assert 100 < absence.writes < 2000
