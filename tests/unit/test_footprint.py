"""What a model takes is known before it is taken, and is what it takes in the end."""

import gc
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shared.errors import ModelError, NotAllowedError
from shared.model.footprint import estimate_training_bytes, state_bytes
from shared.model.spec import TensorSpec

FLOAT = torch.float32


def mlp(**kwargs):
    return estimate_training_bytes("shared.model.zoo:mlp", kwargs, TensorSpec((8, 64), FLOAT), 2)


@settings(deadline=None, max_examples=20)
@given(hidden=st.integers(1, 100), depth=st.integers(2, 5), batch=st.integers(1, 64), states=st.integers(0, 3))
def test_the_estimate_is_the_sum_of_its_parts(hidden, depth, batch, states):
    kwargs = {"hidden": hidden, "depth": depth}
    estimate = estimate_training_bytes("shared.model.zoo:mlp", kwargs, TensorSpec((batch, 64), FLOAT), states)
    widths = [64, *[hidden] * (depth - 1), 10]
    weights = 4 * sum(before * after + after for before, after in pairwise(widths))
    # Of a linear layer its input is kept for the backward, of a ReLU its output, which is the next layer's input.
    activations = 4 * batch * (64 + (depth - 1) * hidden)
    assert estimate == weights * (2 * (1 + states) + 1) + activations


@pytest.mark.parametrize(
    ("factory", "kwargs", "example"),
    [
        ("shared.model.zoo:residual_cnn", {}, TensorSpec((4, 1, 8, 8), FLOAT)),
        ("shared.model.zoo:separable_cnn", {}, TensorSpec((4, 3, 16, 16), FLOAT)),
        ("shared.model.zoo:bilstm", {}, TensorSpec((4, 12), torch.int64)),
    ],
)
def test_the_models_that_we_bring_can_be_estimated(factory, kwargs, example):
    with_states, without = (estimate_training_bytes(factory, kwargs, example, states) for states in (2, 0))
    assert 0 < without < with_states


def test_an_absurd_model_takes_no_memory_to_be_estimated():
    assert mlp(hidden=10**6, depth=50) > 10**14


def test_the_default_device_and_generator_are_as_before():
    state = torch.get_rng_state()
    mlp()
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.empty(1).is_meta


def test_nothing_of_an_estimate_is_kept():
    def of_no_device():
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) and each.is_meta for each in gc.get_objects())

    before = of_no_device()
    mlp(depth=5)
    assert of_no_device() == before


def test_a_factory_that_looks_at_values_has_no_estimate():
    example = TensorSpec((8, 64), FLOAT)
    assert estimate_training_bytes("tests.unit.test_footprint:looks_at_values", {}, example, 1) is None
    assert state_bytes(looks_at_values(), 1) == 5 * 4 * 12


def test_a_factory_that_is_not_allowed_is_not_imported():
    with pytest.raises(NotAllowedError):
        estimate_training_bytes("os:system", {}, TensorSpec((1,), FLOAT), 0, allowed_prefixes=["shared"])
    with pytest.raises(ModelError):
        estimate_training_bytes("no.such:thing", {}, TensorSpec((1,), FLOAT), 0)


def looks_at_values():
    layer = nn.Linear(3, 3)
    if float(layer.weight.detach().sum()) > 1e9:
        raise ValueError
    return layer
