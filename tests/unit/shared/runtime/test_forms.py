"""The largest load that the loop encodes itself instead of a thread."""

from dataclasses import replace

import pytest

from shared.codec import codec_by_name
from shared.placement import Cargo, Crossing, Placement, Route, Rows, two_workers
from shared.runtime.forms import Forms
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
