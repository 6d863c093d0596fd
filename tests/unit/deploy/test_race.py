"""The verdict on a race: it says only what its runs did."""

import pytest

from deploy.demo import demo_engine
from deploy.demo.race import Moment, Phase, Race, Racer, note_of
from deploy.demo.race_picture import draw_race

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


def test_the_engine_is_compared_with_the_fastest_of_the_others():
    race = Race(PHASES, racer("the engine", 4, 2), [racer("a kept cut", 4, 1), racer("another", 4, 4)])
    ratio, best = race.against_best
    assert (ratio, best.name) == (pytest.approx(0.75), "another")


CHANGE = {
    "event": "changing the deployment",
    "wanted": "cut 3, staleness 0, 32 bits",
    "reason": "link",
    "predicted_seconds_per_step": 0.2812,
    "staying_seconds_per_step": 0.8402,
}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (CHANGE, "cut 3, the link: 0.28 s a step, not 0.84"),
        (CHANGE | {"reason": "device"}, "cut 3, a worker is slower or quicker: 0.28 s a step, not 0.84"),
        (
            {
                "event": "a worker was measured again, because one factor did not bring it right",
                "worker": "edge",
                "training_waited_seconds": 0.1,
            },
            "measured edge again: 0.10 s",
        ),
        (
            {
                "event": "the times of a worker stay, because it could not be measured again",
                "worker": "edge",
                "reason": "no room",
                "training_waited_seconds": 0.0,
            },
            "kept the times of edge: no room",
        ),
    ],
)
def test_what_the_engine_did_is_told_with_its_reason(entry, words):
    assert note_of(3.0, entry) == (3.0, words)
    assert note_of(3.0, {"event": "session opened"}) is None


def test_the_picture_has_what_the_engine_did(tmp_path):
    race = Race(PHASES, racer("the engine", 4, 2), [racer("a kept cut", 4, 1)])
    race.engine.notes.append(note_of(3.0, CHANGE))
    draw_race(race, tmp_path / "race.svg")
    assert "cut 3, the link: 0.28 s a step, not 0.84" in (tmp_path / "race.svg").read_text()


@pytest.mark.parametrize(("least", "code"), [("0.7", 0), ("0.8", 1)])
def test_several_races_end_with_all_ratios_and_fail_where_one_is_too_low(least, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = []

    def raced(*, busy):
        asked.append(busy)
        return Race(PHASES, racer("the engine", 4, 2), [racer("another", 4, 2 * len(asked))])

    monkeypatch.setattr(demo_engine, "raced", raced)
    monkeypatch.setattr(demo_engine, "draw_race", lambda *_: None)  # another test draws
    monkeypatch.setattr(demo_engine.processes, "end_on_sigterm", lambda: None)
    assert demo_engine.main(["--runs", "2", "--busy", "--least", least]) == code
    assert asked == [True, True]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "all: 1.00, 0.75; the least is 0.75"


def test_a_core_is_busy_only_while_it_should_be(monkeypatch):
    begun = []
    popen = demo_engine.subprocess.Popen
    monkeypatch.setattr(demo_engine.subprocess, "Popen", lambda *given: begun.append(popen(*given)) or begun[-1])
    with demo_engine.busy_core():
        assert begun[0].poll() is None
    assert begun[0].returncode is not None
