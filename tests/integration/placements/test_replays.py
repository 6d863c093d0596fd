"""With K > 0 the order in which the workers computed decides every bit: replayed in one process, it gives the same weights."""

import copy

import pytest
import torch

from edge_agent.experiment.experiment import Experiment
from isthmus import run_training
from shared.codec import FeedbackMode
from shared.execution.blocks import Method
from shared.execution.in_process_session import InProcessSession, Turn
from shared.execution.step_scheduler import StepScheduler
from shared.model.chain import build_chain
from shared.training.losses import LossHead
from tests.support.experiments import flags
from tests.support.placed import state_of
from tests.support.placement_kinds import BATCH_SIZE, addresses_of, flags_of, permitted, running_trainers
from tests.support.plain import assert_same_bits
from tests.support.running import Listening, edge_config

STEPS, K = 24, 3
LOSSY = ('deployment.codec="uniform8"', 'deployment.downlink_codec="bf16"')
CASES = [
    pytest.param("chain of three", "cnn", "replay", LOSSY, marks=pytest.mark.slow),
    pytest.param("chain of three", "cnn", "stash", (), marks=pytest.mark.slow),
    ("chain of three", "tied", "replay", ('deployment.codec="uniform4-channel"',)),
    pytest.param("chain of four", "mlp", "replay", LOSSY, marks=pytest.mark.slow),
    ("labels stay", "cnn", "replay", LOSSY),
    pytest.param("there and back", "cnn", "stash", LOSSY, marks=pytest.mark.slow),
    pytest.param("samples divided", "mlp", "replay", LOSSY, marks=pytest.mark.slow),
    ("three tiers", "cnn", "replay", ()),
]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def turns(monkeypatch):
    """Record the computations of every worker of this process, in their order."""
    found, finish = [], StepScheduler.finish

    def noted(steps, work):
        found.append(Turn(steps.worker, work.step, work.segment))
        return finish(steps, work)

    monkeypatch.setattr(StepScheduler, "finish", noted)
    return found


def replayed(config, turns):
    """The weights that one process comes to, following these turns."""
    experiment = Experiment(config)
    deployment, placement = config.deployment, experiment.placement
    module, example = experiment.chain.module, next(experiment.loader.iterate(0, 1)).inputs[:2]
    chains = {worker: build_chain(copy.deepcopy(module), example) for worker in placement.workers}
    method = Method(LossHead(experiment.recipe.loss, None), deployment.backward, FeedbackMode(deployment.feedback))
    in_process = InProcessSession(chains, placement, experiment.recipe, method, torch.device("cpu"))
    batches = ((batch.inputs, batch.labels) for batch in experiment.loader.iterate(0, STEPS))
    in_process.replay(turns, batches)
    return state_of(chains, placement)


@pytest.mark.first_case
@pytest.mark.parametrize(("kind", "model", "backward", "codecs"), CASES)
async def test_the_order_of_a_run_replayed_in_one_process_gives_the_same_bits(
    kind, model, backward, codecs, turns, tmp_path
):
    order = []

    def progressed(progress):
        if progress.steps == STEPS and not order:  # an evaluation follows
            order.extend(turns)

    async with running_trainers() as servers:
        config = edge_config(
            *flags(model, "adamw", *flags_of(kind, addresses_of(servers), tmp_path), *permitted(kind, model), *codecs),
            f"data.batch_size={BATCH_SIZE}",
            f"training.max_steps={STEPS}",
            "training.evaluate_every_epochs=0",
            f"deployment.staleness={K}",
            f'deployment.backward="{backward}"',
        )
        result = await run_training(config, Listening(progressed))
    assert {turn.step for turn in order} == set(range(STEPS))
    weights = replayed(config, order)
    assert_same_bits({name: result.module.state_dict()[name] for name in weights}, weights)

    # The order decides the weights, or equal weights would say nothing of it.
    in_turn = sorted(order, key=lambda turn: turn.step)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(weights, replayed(config, in_turn))
