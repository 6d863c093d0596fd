"""The largest load that the loop encodes itself instead of a thread; and what may come where features are recalled."""

import math
from dataclasses import replace

import pytest
import torch

from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.placement import Cargo, Crossing, Placement, Route, Rows, two_workers
from shared.runtime.forms import Forms
from shared.training.losses import COUNTS
from tests.support.placed import built, chain_of, recipe

UP = Route("edge", "gpu", Cargo.FEATURE)


def quick_bytes(codec: str, cargo: Cargo) -> int:
    placement: Placement = replace(two_workers("edge", "gpu", 2, 4, 4), codecs={UP: codec})
    forms = Forms(placement, chain_of(built("dropping")), lambda _labels: None, recipe("sgd"))
    return forms.of(Crossing("edge", "gpu", cargo, 4 if cargo is Cargo.LABEL else 2, Rows(0, 4))).quick_bytes


@pytest.mark.parametrize("codec", ["mbq2", "uniform8"])
def test_a_codec_that_is_fitted_first_is_given_a_thread_sooner(codec):
    assert quick_bytes(codec, Cargo.FEATURE) == codec_by_name(codec).QUICK_BYTES
    assert codec_by_name("mbq2").QUICK_BYTES < codec_by_name("uniform8").QUICK_BYTES


def test_labels_are_as_quick_whatever_the_features_are_sent_in():
    assert quick_bytes("mbq2", Cargo.LABEL) == codec_by_name("raw").QUICK_BYTES


def tensor_of(cargo: Cargo, slot: int):
    """Return what must come for a slot of a step of three samples, where features are recalled."""
    placement: Placement = replace(two_workers("edge", "gpu", 2, 4, 4), codecs={UP: "uniform8"})
    forms = Forms(placement, chain_of(built("dropping")), lambda _labels: None, recipe("sgd"), recalls=True)
    slots = (0, 1) if cargo is Cargo.LABEL else (0,)
    crossing = Crossing("edge", "gpu", cargo, 4 if cargo is Cargo.LABEL else 2, Rows(0, 4), slots)
    return forms.of(crossing).expected(7, slot, 3)


def test_counts_of_labels_are_two_finite_numbers_and_come_in_training_alone():
    told = recipe("sgd").model_copy(update={"mean": "token"})
    placement = two_workers("edge", "gpu", 2, 4, 4)
    forms = Forms(placement, chain_of(built("dropping")), lambda _labels: None, told)
    in_training, to_evaluate = (
        forms.of(Crossing("edge", "gpu", Cargo.LABEL, 4, Rows(0, 4), slots)) for slots in ((0, 1), (0,))
    )
    assert in_training.expected(7, 1, 3).tensor == COUNTS
    assert to_evaluate.expected(7, 0, 3).tensor != COUNTS
    load = torch.arange(3), torch.tensor([3.0, math.inf], dtype=torch.float64)
    with pytest.raises(ProtocolError, match="are no finite numbers"):
        in_training.decode(in_training.encode(load))


def test_some_features_and_labels_may_be_left_out_and_no_number():
    feature = tensor_of(Cargo.FEATURE, 0)
    assert feature.codec == "uniform8-by-sample"
    spec = chain_of(built("dropping")).features[2][0]
    for count in range(4):
        feature.tensor(TensorSpec((count, *spec.shape[1:]), spec.dtype))
        tensor_of(Cargo.LABEL, 0).tensor(TensorSpec((count,), torch.int8))
    for wrong in ((4, *spec.shape[1:]), (2, *spec.shape[1:], 1), ()):
        with pytest.raises(ProtocolError, match="a feature"):
            feature.tensor(TensorSpec(wrong, spec.dtype))
    with pytest.raises(ProtocolError, match="a feature"):
        feature.tensor(TensorSpec((2, *spec.shape[1:]), torch.float64))
    with pytest.raises(ProtocolError, match="came for 3 samples"):
        tensor_of(Cargo.LABEL, 0).tensor(TensorSpec((4,), torch.int8))
    assert tensor_of(Cargo.LABEL, 1).tensor == TensorSpec((3,), torch.int32)
