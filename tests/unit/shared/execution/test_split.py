"""Split training in one process: a plain loop without staleness, and exact with it."""

import itertools
import json
from dataclasses import replace

import pytest
import torch

from benchmarks.learning.plan import SUITES
from edge_agent.experiment.experiment import Experiment
from shared.codec import FeedbackMode, seed_stochastic_rounding
from shared.execution.split import Scheme, split_session
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def simulated(scheme: Scheme, steps: int = 20, seed: int = 0, flags: tuple[str, ...] = ()):
    """Return the state after some steps on the digits, and every loss."""
    experiment = Experiment(edge_config(*FLAGS, f"training.seed={seed}", *flags))
    cut, recipe = experiment.deployment.edge_blocks, experiment.recipe
    in_process = split_session(experiment.chain, (cut,), recipe, scheme, CPU)
    batches = ((batch.inputs, batch.labels) for batch in experiment.loader.iterate(0, steps))
    losses = in_process.train(0, steps, batches)
    return dict(experiment.chain.module.state_dict()), [batch.loss for batch in losses]


FLAGS = ["model.kwargs={width=8, blocks=2, dropout=0.2}", "training.optimizer={learning_rate=0.05, momentum=0.9}"]


def test_serial_fp32_is_a_plain_training_loop():
    state, losses = simulated(SUITES["pair"].configs["serial"][0])
    assert_same_bits(plain_state(edge_config(*FLAGS, "training.max_steps=20")), state)
    assert len(losses) == 20


def test_every_part_of_a_scheme_matters_and_the_first_loss_is_free_of_staleness():
    schemes = [
        Scheme(5),
        Scheme(4),
        Scheme(5, "stash"),
        Scheme(5, codec="uniform4"),
        Scheme(5, codec="uniform4", feedback=FeedbackMode.LITERAL),
        Scheme(5, codec="uniform4", feedback=FeedbackMode.OFF),
        Scheme(5, codec="uniform4", downlink_codec="uniform8"),
    ]
    ends = {scheme: simulated(scheme, steps=8) for scheme in schemes}
    for one, other in itertools.combinations(schemes, 2):
        (state, losses), (other_state, other_losses) = ends[one], ends[other]
        assert any(not torch.equal(state[name], other_state[name]) for name in state), (one, other)
        assert (losses[0] == other_losses[0]) == (one.codec == other.codec)


def test_where_nothing_on_the_edge_learns_nothing_comes_late():
    experiment = Experiment(edge_config(*FLAGS))
    edge = experiment.chain.blocks[: experiment.deployment.edge_blocks]
    flags = (f"model.frozen={json.dumps([name for block in edge for name in block.named_parameters()])}",)
    late, exact = (simulated(scheme, steps=8, flags=flags)[0] for scheme in (Scheme(5), Scheme()))
    assert_same_bits(late, exact)
    lossy = simulated(Scheme(5, codec="uniform2"), steps=8, flags=flags)[0]
    assert any(not torch.equal(exact[name], lossy[name]) for name in exact)


def test_stochastic_rounding_is_the_seeds():
    scheme = replace(SUITES["pair"].configs["k5-8bit-both"][0], staleness=1)
    states = []
    for draw in (1, 1, 2):
        seed_stochastic_rounding(draw)
        states.append(simulated(scheme, steps=4)[0])
    assert_same_bits(states[0], states[1])
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(states[0], states[2])
