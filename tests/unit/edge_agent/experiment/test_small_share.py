"""A warning of an even cut: the run tells that a default cut leaves a worker almost no part of the model."""

import pytest
from structlog.testing import capture_logs

from edge_agent.experiment.experiment import Experiment
from edge_agent.experiment.small_share import LEAST_SHARE, warn_of_small_share
from tests.support.experiments import flags
from tests.support.running import edge_config

TOKENS = 'data.train={factory="tests.support.samples:Sequences"}'
MASKED = ('model.factory="tests.support.models.masked:encoder"', TOKENS)


def warnings(*more, experiment=MASKED):
    built = Experiment(edge_config(*experiment, *more))
    with capture_logs() as logs:
        warn_of_small_share(built)
    return logs


def head_share(width):
    """Return the head's share of the parameters, for the model with two masked layers, 50 tokens and 4 classes."""
    head = 4 * (width + 1)
    return head / (50 * width + 4 * width * (width + 1) + head)


def test_a_cut_that_leaves_the_trainer_almost_nothing_is_reported_in_one_sentence():
    (said,) = warnings("model.kwargs={width=96}")
    assert said["log_level"] == "warning"
    assert "edge-agent model --explain" in said["event"]
    assert "deployment.cut" in said["event"]
    assert (said["worker"], said["parameters"], said["cut"], said["blocks"]) == ("trainer", 4 * 97, 1, 2)
    assert said["parameters"] < LEAST_SHARE * said["of"]


@pytest.mark.parametrize("width", [48, 64, 80, 96, 112])
def test_it_is_reported_below_a_hundredth_and_not_above(width):
    assert bool(warnings(f"model.kwargs={{width={width}}}")) == (head_share(width) <= LEAST_SHARE)


def test_a_cut_or_placement_that_the_user_chose_is_not_reported():
    wide = "model.kwargs={width=96}"
    assert warnings(wide, "deployment.cut=1") == []
    assert warnings(wide, 'placement={edge="0:1", trainer="1:"}') == []
    assert warnings(wide, "trainers=[]") == []


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm"])
def test_an_even_cut_is_not_reported(model):
    assert warnings(experiment=flags(model, "sgd")) == []
