"""What the edge takes from a trainer, and what it does not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.training.in_flight import BatchInFlight, InFlight
from shared.codec import codec_by_name, codec_names
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.tensor_wire import to_wire
from shared.transport.stream.framing import chunks
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

FEATURE = TensorSpec((4, 3), torch.float32)
EPOCH = 2


def in_flight(steps: range, *, gradient_due: bool = True) -> InFlight:
    flying = InFlight()
    for step in steps:
        batch = BatchInFlight(step, Deployment(epoch=EPOCH, downlink_codec="fp32"), 4, FEATURE, 0.1, 1 + gradient_due)
        flying.add(batch, gradient_due=gradient_due)
    return flying


def gradient(step: int, role: Role = Role.ROLE_ERROR_GRADIENT, epoch: int = EPOCH, **header) -> Frame:
    announced = {"codec": "fp32", "dtype": DataType.DATA_TYPE_FLOAT32, "shape": [4, 3], "strides": [3, 1]}
    announced |= {"encoded_bytes": 48, **header}
    return Frame(role=role, step=step, deployment_epoch=epoch, tensor=TensorHeader(**announced))


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4).flatmap(
        lambda sizes: st.permutations([*sizes, 3000]).map(tuple)
    ),
    st.sampled_from(codec_names()),
    st.booleans(),
)
def test_a_gradient_of_any_shape_and_codec_is_taken(shape, codec, channels_last):
    """Even where the ranges of the codec's channels are more than the values are."""
    flying, right = InFlight(), torch.zeros(shape)
    if channels_last and right.dim() == 4:
        right = right.to(memory_format=torch.channels_last)
    deployment = Deployment(epoch=EPOCH, downlink_codec=codec)
    flying.add(BatchInFlight(5, deployment, shape[0], TensorSpec.of(right), 0.1, 2), gradient_due=True)
    tensor = to_wire(codec_by_name(codec).encode(right), 5, Role.ROLE_ERROR_GRADIENT, EPOCH)
    flying.accept(next(chunks(tensor, 1 << 20))[0])
    assert flying.answered(5).step == 5


@given(st.integers(0, 100), st.integers(1, 7), st.randoms())
def test_gradients_in_order_and_reports_settle_every_step_in_any_interleaving(first, count, dice):
    steps = range(first, first + count)
    flying = in_flight(steps)
    gradients, reports = list(steps), list(steps)
    while gradients or reports:
        if gradients and (not reports or dice.random() < 0.5):
            step = gradients.pop(0)
            flying.accept(gradient(step))
        else:
            step = reports.pop(0)
        assert flying.answered(step).step == step
    with pytest.raises(ProtocolError, match=f"step {first}, which is not in flight"):
        flying.answered(first)


REFUSALS = [
    (gradient(6), "the error gradient of step 6 came where the error gradient of step 5 was due"),
    (gradient(4), "the error gradient of step 4 came where the error gradient of step 5 was due"),
    (gradient(5, role=Role.ROLE_FEATURE), "the feature of step 5 came where the error gradient of step 5 was due"),
    (gradient(5, role=77), "tensor of unknown role 77"),
    (gradient(5, epoch=3), "came under deployment 3; .* under deployment 2 was due"),
    (gradient(5, shape=[4, 4], strides=[4, 1], encoded_bytes=64), r"float32 \(4, 4\); torch.float32 \(4, 3\) was due"),
    (gradient(5, dtype=DataType.DATA_TYPE_FLOAT64), r"float64 \(4, 3\); torch.float32 \(4, 3\) was due"),
    (gradient(5, codec="fp16"), "encoded as 'fp16'; 'fp32' is agreed"),
    (gradient(5, encoded_bytes=44), "announces 44 bytes; fp32 of .* has 48"),
]


@pytest.mark.parametrize(("frame", "sentence"), REFUSALS)
def test_what_is_not_the_gradient_that_is_due_is_refused(frame, sentence):
    flying = in_flight(range(5, 8))
    with pytest.raises(ProtocolError, match=sentence):
        flying.accept(frame)
    flying.accept(gradient(5))


def test_a_gradient_that_comes_twice_is_refused():
    flying = in_flight(range(5, 6))
    flying.accept(gradient(5))
    with pytest.raises(ProtocolError, match="nothing was due"):
        flying.accept(gradient(5))


def test_a_gradient_after_two_reports_is_refused():
    flying = in_flight(range(5, 6))
    flying.answered(5)
    flying.answered(5)
    with pytest.raises(ProtocolError, match="reported step 5 twice"):
        flying.accept(gradient(5))


def test_where_no_gradient_comes_reports_come_in_order():
    flying = in_flight(range(5, 8), gradient_due=False)
    with pytest.raises(ProtocolError, match="reports step 6; the report of step 5 is due"):
        flying.answered(6)
    assert [flying.answered(step).step for step in range(5, 8)] == [5, 6, 7]
    with pytest.raises(ProtocolError, match="nothing was due"):
        flying.accept(gradient(8))
