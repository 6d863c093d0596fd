"""Length of the time in which the pipeline stays full: to empty it takes as long as some steps."""

import pytest

from isthmus import run_training
from tests.support.experiments import MODELS
from tests.support.running import Listening, edge_config, running_trainer

EPOCHS, STEPS_PER_EPOCH = 4, 5
TEST_SET = 'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}'


@pytest.mark.first_case
@pytest.mark.parametrize(("every_epochs", "stretches"), [(0, 1), (1, EPOCHS), (2, EPOCHS // 2)])
async def test_the_pipeline_is_emptied_only_where_the_model_is_evaluated(every_epochs, stretches):
    seen = []
    async with running_trainer() as server:
        config = edge_config(
            *MODELS["mlp"],
            TEST_SET,
            "data.batch_size=256",
            f"training.epochs={EPOCHS}",
            f"training.evaluate_every_epochs={every_epochs}",
            "deployment.staleness=2",
            f"trainer.address={server.address}",
        )
        await run_training(config, Listening(lambda statistics: seen.append(statistics)))
    assert seen[-1].steps == EPOCHS * STEPS_PER_EPOCH
    assert seen[-1].steps - seen[-1].step_time.count == stretches, "the first step of a stretch follows no other"
