"""The estimates that are compared with the predictor."""

import numpy as np
import pytest
import torch

from benchmarks.predictor.__main__ import estimates
from benchmarks.predictor.paper_network import paper_network
from edge_agent.planning.prediction import Measured, known_devices
from tests.support.latency import costs_of, table_of


def found(*kinds, unseen):
    known = known_devices({f"d{kind}": table_of(f"d{kind}", costs_of(kind)) for kind in kinds})
    return estimates(known, table_of("new", costs_of(unseen)), 0)


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr("benchmarks.predictor.paper_network.STEPS", 50)


def test_a_device_of_a_known_kind_is_predicted_better_than_by_any_baseline():
    ours, *others = found(0, 1, 2, 4, 6, unseen=3).values()
    assert all(ours.median_error < other.median_error for other in others)


def test_a_device_beyond_all_known_ones_is_not_worse_than_by_the_nearest():
    of = found(0, 1, 2, unseen=9)
    assert of["predictor"].median_error < of["nearest"].median_error


def test_the_papers_network_learns_and_touches_nobodys_random_state(monkeypatch):
    monkeypatch.setattr("benchmarks.predictor.paper_network.STEPS", 400)
    generator = np.random.default_rng(0)
    layers = generator.integers(0, 2, (60, 6)).astype(np.uint8)
    seconds = np.log(0.01 + layers @ np.linspace(0.001, 0.01, 6))
    known = np.stack([seconds, seconds + 1.0, seconds + 2.0])
    reference = np.arange(10)
    before = torch.random.get_rng_state()
    predicted = paper_network(layers, known, reference, Measured(reference, seconds[:10] + 1.5))
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.median(np.abs(predicted - seconds - 1.5)) < 0.1
