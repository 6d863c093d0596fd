"""Seconds for which trainers have not answered, in virtual time."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from edge_agent.sessions import silence
from edge_agent.sessions.silence import Silence
from shared.errors import BusyError, UnreachableError


class Trainer:
    """A trainer that answers with a failure or none, or not before it is let."""

    def __init__(self):
        self.asked, self.failure, self.unanswered_since = 0, None, None
        self.lets = asyncio.Event()
        self.lets.set()

    async def check_serving(self):
        self.asked += 1
        await self.lets.wait()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def now(monkeypatch):
    passed = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    monkeypatch.setattr(silence, "OTHERS_SECONDS", 0.0)  # this clock stands still
    return passed


@pytest.fixture
async def trainers():
    return {"near": Trainer(), "far": Trainer()}


@pytest.fixture
async def asking(trainers):
    silence = Silence({name: SimpleNamespace(client=trainer) for name, trainer in trainers.items()})
    yield silence
    silence.end()


async def test_silence_begins_with_the_first_question_that_is_not_answered_and_ends_with_an_answer(
    trainers, asking, now
):
    trainers["near"].failure = UnreachableError("away")
    assert await asking.ask(["near", "far"]) == {"near": 0.0}
    now[0] += 7.0
    assert await asking.ask(["near", "far"]) == {"near": 7.0}
    trainers["near"].failure = BusyError("any answer is one")
    assert await asking.ask(["near"]) == {}
    trainers["near"].failure = UnreachableError("away")
    now[0] += 1.0
    assert await asking.ask(["near"]) == {"near": 0.0}


async def test_an_open_question_is_not_asked_twice_and_counts_until_it_is_answered(trainers, asking, now):
    trainers["near"].lets.clear()
    assert await asking.ask(["near"]) == {"near": 0.0}
    now[0] += 7.0
    assert await asking.ask(["near"]) == {"near": 7.0}
    assert trainers["near"].asked == 1
    trainers["near"].lets.set()
    assert await asking.ask(["near"]) == {}


async def test_a_question_to_one_trainer_says_nothing_of_another(trainers, asking, now):
    trainers["near"].failure = UnreachableError("away")
    await asking.ask(["near", "far"])
    now[0] += 7.0
    assert await asking.ask(["far"]) == {}
    assert await asking.ask(["near", "far"]) == {"near": 7.0}


async def test_closed_questions_are_remembered_and_forgotten_ones_are_not(trainers, asking, now):
    for trainer in trainers.values():
        trainer.lets.clear()
    await asking.ask(["near", "far"])
    asking.end()
    now[0] += 7.0
    asking.forget(but=["near"])
    assert await asking.ask(["near", "far"]) == {"near": 7.0, "far": 0.0}


async def test_one_that_answers_is_silent_since_the_calls_that_it_has_left_unanswered(trainers, asking, now):
    trainers["near"].unanswered_since = now[0] - 30.0
    assert await asking.ask(["near"]) == {"near": 30.0}
