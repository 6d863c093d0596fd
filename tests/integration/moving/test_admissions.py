"""A trainer that is admitted beside what a run does."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from edge_agent.sessions.membership import Membership
from edge_agent.sessions.trainer_worker import TrainerWorker
from isthmus import run_training
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, hand_over, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
CHOSEN = [*flags("mlp", "adamw"), "training.max_steps=20", "training.evaluate_every_epochs=1"]
TEST = 'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}'


async def test_a_trainer_that_is_admitted_during_an_evaluation_does_not_end_the_run(monkeypatch):
    deployers, admitted, admit, evaluation = [], asyncio.Event(), Membership.admit, TrainerWorker.evaluation

    def admitting(members, trainer):
        admit(members, trainer)
        admitted.set()

    @asynccontextmanager
    async def begun_while_another_is_admitted(trainer, *given):
        async with evaluation(trainer, *given) as answer:
            hand_over(deployers[-1], "there")
            await admitted.wait()
            yield answer

    monkeypatch.setattr(Membership, "admit", admitting)
    monkeypatch.setattr(TrainerWorker, "evaluation", begun_while_another_is_admitted)
    async with running_trainer(PEERS_ALLOWED) as here, running_trainer(PEERS_ALLOWED) as there:
        trainers = f'trainers=[{{name="here", address="{here.address}"}}, {{name="there", address="{there.address}"}}]'
        async with asyncio.timeout(60):
            result = await run_training(
                edge_config(*CHOSEN, TEST, trainers), Listening(session_opened=deployers.append)
            )
    assert admitted.is_set()
    assert result.summary.accuracy is not None
    assert_same_bits(plain_state(edge_config(*CHOSEN)), result.module.state_dict())
