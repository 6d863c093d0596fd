"""The check of announcements. The tests of each side test its reaction."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import codec_by_name
from shared.errors import IsthmusError, OutOfTurnError, ProtocolError
from shared.model.spec import TensorSpec
from shared.registry import codec_names
from shared.runtime import ExpectedTensor, check_announcement
from shared.tensor_wire import to_wire
from shared.transport.stream.framing import TensorKey, chunks
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role, TensorHeader

FEATURE = TensorSpec((4, 3), torch.float32)
VERSION = 2
KEY = TensorKey(5, Role.ROLE_FEATURE, 1)


def announced(version=VERSION, codec="fp32", shape=(4, 3), **key) -> Frame:
    tensor = codec_by_name(codec).encode(torch.zeros(shape))
    return next(chunks(to_wire(tensor, KEY._replace(**key), version), 1 << 20))[0]


def expected_tensor(**changed) -> ExpectedTensor:
    wanted = {"key": KEY, "placement_version": VERSION, "codec": "fp32", "tensor": FEATURE}
    return ExpectedTensor(**{**wanted, **changed})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), st.sampled_from(codec_names()))
def test_an_expected_announcement_is_accepted(shape, codec):
    wanted = expected_tensor(tensor=TensorSpec(shape, torch.float32), codec=codec)
    assert check_announcement(announced(shape=shape, codec=codec), wanted) == wanted.tensor


OUT_OF_TURN = [
    (announced(step=6), r"the feature of step 6 \(block 1\) came where the feature of step 5 \(block 1\) was expected"),
    (
        announced(version=3),
        r"came under placement 3; the feature of step 5 \(block 1\) under placement 2 was expected",
    ),
]
WRONG = [
    (announced(role=Role.ROLE_LABEL), r"the label of step 5 .* came where the feature of step 5 .* was expected"),
    (announced(role=99), r"unknown role 99 of step 5 \(block 1\) came"),
    (
        announced(block=2),
        r"the feature of step 5 \(block 2\) came where the feature of step 5 \(block 1\) was expected",
    ),
    (announced(slot=1), r"the feature of step 5 \(block 1, slot 1\) came where"),
    (announced(shape=(4, 4)), r"float32 \(4, 4\); torch.float32 \(4, 3\) was expected"),
    (announced(codec="fp16"), "encoded as 'fp16'; 'fp32' is agreed"),
]


@pytest.mark.parametrize(("frame", "sentence"), [*OUT_OF_TURN, *WRONG])
def test_an_unexpected_announcement_is_refused(frame, sentence):
    with pytest.raises(ProtocolError, match=sentence) as refused:
        check_announcement(frame, expected_tensor())
    assert isinstance(refused.value, OutOfTurnError) == ((frame, sentence) in OUT_OF_TURN)


def absent(**told) -> Frame:
    frame = next(chunks(to_wire(None, KEY, VERSION), 1 << 20))[0]
    frame.tensor.MergeFrom(TensorHeader(**told))
    return frame


def test_an_error_gradient_may_be_absent_and_nothing_else_may():
    assert check_announcement(absent(), expected_tensor(may_be_absent=True)) is None
    for frame, expected in (
        (absent(), expected_tensor()),
        (absent(encoded_bytes=1 << 40), expected_tensor(may_be_absent=True)),
        (absent(codec="fp32", shape=(4, 3)), expected_tensor(may_be_absent=True)),
    ):
        with pytest.raises(ProtocolError, match="said to be absent"):
            check_announcement(frame, expected)
    with pytest.raises(OutOfTurnError):
        check_announcement(absent(), expected_tensor(may_be_absent=True, key=KEY._replace(step=6)))


@pytest.mark.parametrize("most", [47, 48])
def test_no_tensor_has_more_bytes_than_the_operator_lets_it_have(most):
    may = nullcontext() if most >= 48 else pytest.raises(ProtocolError)
    with may:
        check_announcement(announced(), expected_tensor(max_bytes=most))


def test_a_shape_that_the_peer_chooses_needs_permission():
    def permit(tensor: TensorSpec) -> None:
        if tensor.shape[0] > 4:
            raise IsthmusError("too many")

    assert check_announcement(announced(), expected_tensor(tensor=permit)) == FEATURE
    with pytest.raises(IsthmusError, match="too many"):
        check_announcement(announced(shape=(5, 3)), expected_tensor(tensor=permit))
