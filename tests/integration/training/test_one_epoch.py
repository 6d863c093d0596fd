"""A training of one epoch, in which a schedule by epochs has one value, whatever its name makes a user expect."""

import pytest
from structlog.testing import capture_logs

from isthmus import run_training
from tests.support.experiments import flags
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["linear", "cosine"])
async def test_a_rate_that_could_not_fall_is_told(name):
    alone = [*flags("mlp", "sgd"), "deployment.cut=4", "trainers=[]", "training.epochs=1", "training.max_steps=2"]
    told = []
    for every in ("epoch", "step"):
        with capture_logs() as logs:
            schedule = f'training.schedule={{name="{name}", every="{every}"}}'
            result = await run_training(edge_config(*alone, schedule))
        told.append(any("the learning rate never falls" in one["event"] for one in logs))
        assert (result.history[-1].learning_rate == edge_config(*alone).training.optimizer.learning_rate) is told[-1]
    assert told == [True, False]
