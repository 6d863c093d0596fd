"""The memory of a model: it is known before it is taken, and the estimate is right."""

import gc
import resource
import subprocess
import sys
from itertools import pairwise

import grpc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shared.errors import ModelError, NotAllowedError, TooLargeError
from shared.model.budget import BuildLimits
from shared.model.build import build_model, parse_kwargs
from shared.model.footprint import UpdateMemory, activation_bytes, estimate_training_bytes, state_bytes, training_bytes
from shared.model.inputs import InputSpecs
from shared.model.learning import Learning
from shared.model.spec import TensorSpec
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.examples import examples
from tests.support.running import ROOT, running_trainer
from tests.support.wire import RawPeer, open_request

FLOAT = torch.float32


def of(shape: tuple[int, ...]) -> InputSpecs:
    return InputSpecs((TensorSpec(shape, FLOAT),))


def moments(count, gradients=1):
    """Build an optimizer that keeps so many tensors of each parameter's shape."""
    return UpdateMemory(lambda parameters: count * sum(parameter.nbytes for parameter in parameters), gradients)


def mlp(**kwargs):
    return estimate_training_bytes("shared.model.zoo:mlp", kwargs, of((8, 64)), moments(2))


@settings(deadline=None, max_examples=examples(20))
@given(hidden=st.integers(1, 100), depth=st.integers(2, 5), batch=st.integers(1, 64), states=st.integers(0, 3))
def test_the_estimate_is_the_sum_of_its_parts(hidden, depth, batch, states):
    kwargs = {"hidden": hidden, "depth": depth}
    estimate = estimate_training_bytes("shared.model.zoo:mlp", kwargs, of((batch, 64)), moments(states))
    widths = [64, *[hidden] * (depth - 1), 10]
    weights = 4 * sum(before * after + after for before, after in pairwise(widths))
    # For its backward pass, a linear layer keeps its input. A ReLU keeps its output, the next layer's input.
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
    with_states, without = (
        estimate_training_bytes(factory, kwargs, InputSpecs((example,)), moments(states)) for states in (2, 0)
    )
    assert 0 < without < with_states


def test_the_sum_of_earlier_gradients_is_counted_once_more():
    module = build_model("shared.model.zoo:mlp", {}, 0)
    weights = sum(parameter.nbytes for parameter in module.parameters())
    assert state_bytes(module, moments(1, gradients=2)) == state_bytes(module, moments(1)) + weights


@pytest.mark.parametrize("named", [{"frozen": ("0", "1")}, {"learns": ("2",)}])
def test_what_is_frozen_has_neither_gradient_nor_moments_and_arrives_like_the_rest(named):
    updates = UpdateMemory(lambda values: 3 * sum(value.nbytes for value in values if value.requires_grad))
    of_example = estimate_training_bytes("shared.model.zoo:mlp", {}, of((8, 64)), updates, learning=Learning(**named))
    layers = [4 * (64 * 64 + 64)] * 2 + [4 * (64 * 10 + 10)]
    kept_for_backward = 4 * 8 * 64
    assert of_example == 2 * (sum(layers) + 3 * layers[2]) + layers[2] + kept_for_backward


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
    example = of((8, 64))
    assert (
        estimate_training_bytes("tests.unit.shared.model.test_footprint:looks_at_values", {}, example, moments(1))
        is None
    )
    assert state_bytes(looks_at_values(), moments(1)) == 5 * 4 * 12


def test_a_factory_that_is_not_allowed_is_not_imported():
    with pytest.raises(NotAllowedError):
        estimate_training_bytes("os:system", {}, of((1,)), moments(0), allowed=["shared"])
    with pytest.raises(ModelError):
        estimate_training_bytes("no.such:thing", {}, of((1,)), moments(0))


def looks_at_values():
    layer = nn.Linear(3, 3)
    if float(layer.weight.detach().sum()) > 1e9:
        raise ValueError
    return layer


def many_modules(count):
    return nn.Sequential(*[nn.ReLU() for _ in range(count)])


def swallowing(count):
    layers = []
    for _ in range(count):
        try:  # noqa: SIM105
            layers.append(nn.ReLU())
        except:  # noqa: E722 - as a user's code may be
            pass
    return nn.Sequential(*layers)


def endless():
    while True:
        len(str(torch.Size()))


def wide(width):
    if torch.zeros(1).item() == 0:  # the meta device cannot tell
        return nn.Sequential(nn.Linear(1, width), nn.Linear(width, 1))
    raise AssertionError


def repeated(width):
    return nn.ParameterList(
        [nn.Parameter(torch.zeros(1).expand(width).contiguous() + looks_at_values().bias.sum().item())]
    )


HERE = "tests.unit.shared.model.test_footprint:"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("factory", "kwargs", "says"),
    [
        ("many_modules", {"count": 10**9}, r"more than 50 modules \(server.max_session_modules\)"),
        ("swallowing", {"count": 10**4}, r"more than 50 modules \(server.max_session_modules\)"),
        ("endless", {}, r"not built within 0.5 s \(server.max_build_seconds\)"),
    ],
)
def test_a_factory_is_ended_where_it_takes_too_many_modules_or_too_long(factory, kwargs, says, device):
    limits = BuildLimits(bytes=2**20, modules=50, seconds=0.5)
    with torch.device(device), pytest.raises(TooLargeError, match=says):
        build_model(HERE + factory, kwargs, 0, limits=limits)
    assert sys.getprofile() is None


@pytest.mark.parametrize("factory", ["wide", "repeated"])
def test_a_model_without_an_estimate_takes_no_memory_beyond_the_limit(factory):
    limits = BuildLimits(bytes=2**20, modules=50, seconds=60)
    example = TensorSpec((8, 1), FLOAT)
    assert (
        estimate_training_bytes(HERE + factory, {"width": 8}, InputSpecs((example,)), moments(1), limits=limits) is None
    )
    assert build_model(HERE + factory, {"width": 8}, 0, limits=limits) is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLargeError, match=r"more than 1048576 bytes of memory \(server.max_session_bytes\)"):
        build_model(HERE + factory, {"width": 10**9}, 0, limits=limits)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize("width", [4, 64])
def test_a_built_model_takes_the_estimated_memory(width):
    example = TensorSpec((8, 64), FLOAT)
    module = build_model("shared.model.zoo:mlp", {"hidden": width}, 0)
    assert training_bytes(module, InputSpecs((example,)), moments(2)) == mlp(hidden=width)


def test_a_forward_that_looks_at_values_is_measured_on_few_samples():
    class Looking(nn.Linear):
        def forward(self, value):
            return super().forward(value) if value.sum() > 1e9 else super().forward(value).relu()

    module = nn.Sequential(Looking(64, 64), nn.Linear(64, 10))
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    example = TensorSpec((8, 64), FLOAT)
    assert training_bytes(module, InputSpecs((example,)), moments(2)) == training_bytes(
        plain, InputSpecs((example,)), moments(2)
    )


def test_networks_of_the_zoo_have_a_bounded_depth():
    for name, argument in (("mlp", "depth"), ("residual_cnn", "blocks"), ("bilstm", "layers")):
        with pytest.raises(ModelError, match=f"{argument} is {10**10}; .* to 1000"):
            build_model(f"shared.model.zoo:{name}", {argument: 10**10}, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"a": "' + "x" * 2**16 + '"}', "at most 65536"), ('{"a": ' + "[" * 900 + "]" * 900 + "}", "more than 16 deep")],
)
def test_arguments_of_a_model_are_bounded(text, says):
    with pytest.raises(ModelError, match=says):
        parse_kwargs(text)


async def test_a_model_of_too_many_modules_is_refused_before_it_is_cut():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        model = pb.Model(factory="tests.support.models.many:many", kwargs_json='{"count": 1000000000}')
        end = await peer.unary("OpenSession", open_request(model=model).SerializeToString())
        assert end.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "more than 10000 modules (server.max_session_modules)" in end.details
        assert await peer.open()


def loads_weights():
    net = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 3))
    net.load_state_dict({name: torch.ones(value.shape) for name, value in net.state_dict().items()})
    return net


@pytest.mark.full
def test_a_factory_that_loads_weights_fills_no_log_with_warnings():
    estimate = (
        "import torch\n"
        "from shared.model.footprint import UpdateMemory, estimate_training_bytes\n"
        "from shared.model.inputs import InputSpecs\n"
        "from shared.model.spec import TensorSpec\n"
        "example = InputSpecs((TensorSpec((8, 64), torch.float32),))\n"
        f"print(estimate_training_bytes('{__name__}:loads_weights', {{}}, example, UpdateMemory(lambda parameters: 0)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", estimate], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0
    assert "copying from a non-meta parameter" not in done.stderr


BATCH_OF_64 = (TensorSpec((8, 64), torch.float32),)
KEEPS_INPUT, KEEPS_OUTPUT = 8 * 64 * 4, 8 * 16 * 4
"""Bytes that a linear layer needs for its weights' gradient, and that a ReLU behind it needs for its input's."""


class Looking(nn.Module):
    """A computation that depends on values, which no shape tells."""

    def forward(self, values):
        return values if values.sum() > 0 else values + 0


@pytest.mark.parametrize("first", [[], [Looking()]], ids=["shapes alone", "values"])
@pytest.mark.parametrize(
    ("learns", "input_gradient", "expected"),
    [
        (True, False, KEEPS_INPUT + KEEPS_OUTPUT),
        (True, True, KEEPS_INPUT + KEEPS_OUTPUT),
        (False, True, KEEPS_OUTPUT),
        (False, False, 0),
    ],
)
def test_activations_are_the_tensors_that_learning_blocks_need_for_backward(first, learns, input_gradient, expected):
    module = nn.Sequential(*first, nn.Linear(64, 16).requires_grad_(learns), nn.ReLU())
    assert activation_bytes(module, BATCH_OF_64, (0,) if input_gradient else ()) == expected


def test_a_module_may_write_to_the_features_that_it_is_given():
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 16))
    assert activation_bytes(module, BATCH_OF_64, (0,)) == KEEPS_INPUT
    assert next(module.parameters()).grad is None


def test_integers_have_no_gradients_beside_floats():
    module = nn.Embedding(2, 4)
    tokens = (TensorSpec((8, 16), torch.int64),)
    assert activation_bytes(module, tokens) == tokens[0].bytes
