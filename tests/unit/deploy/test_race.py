"""The verdict on a race: it says only what its runs did."""

import pytest

from deploy.demo.race import Moment, Phase, Race, Racer

PHASES = (Phase(0.0, 1e6, 1.0, "at first"), Phase(10.0, 1e6, 4.0, "slower"))


def racer(name, *rates, cuts=(1, 1)):
    """Build a racer with ten seconds in each phase. rates: steps a second in each phase. The cut of a phase holds from
    its first step on."""
    steps, moments = 0, []
    for phase, (rate, cut) in enumerate(zip(rates, cuts, strict=True)):
        for number in range(1, 10 * rate + 1):
            steps += 1
            moments.append(Moment(10.0 * phase + number / rate, steps, 1.0, cut))
    return Racer(name, moments)


def test_a_slower_run_would_have_gone_on_at_the_pace_of_the_last_phase():
    race = Race(PHASES, racer("the engine", 4, 2), [racer("a kept cut", 4, 1)])
    assert race.steps == 60
    assert race.seconds_of(race.kept[0]) == pytest.approx(30.0)
    assert race.times_as_fast(race.kept[0]) == pytest.approx(1.5)


def test_a_run_that_was_faster_than_the_engine_is_said_to_be():
    race = Race(PHASES, racer("the engine", 2, 2), [racer("a kept cut", 4, 1)])
    assert race.seconds_of(race.kept[0]) == pytest.approx(10.0)
    assert "0.5 times as fast as a kept cut" in race.verdict


def test_the_verdict_names_the_cuts_and_every_other_run():
    others = [racer("cut 1 kept", 4, 1), racer("the device alone", 1, 1)]
    race = Race(PHASES, racer("the engine", 4, 2, cuts=(1, 3)), others)
    assert race.verdict.splitlines() == [
        "with the engine: 60 steps in 20 s, at cuts 1, 3",
        "1.5 times as fast as cut 1 kept, 3.0 as the device alone",
    ]
