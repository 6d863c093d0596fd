"""The registry: each codec is what its spec says of it, and is found by name, family and bits."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import codec_by_name
from shared.errors import ConfigError
from shared.registry import bit_widths, codec_names, codec_of_bits
from tests.support.tensors import carried, made, names, same_bits


@pytest.mark.parametrize("name", codec_names())
def test_a_codec_loses_something_where_it_says_so_and_only_there(name):
    codec, tensor = codec_by_name(name), made((64, 16), torch.float32, 1)
    assert same_bits(codec.decode(carried(codec.encode(tensor))), tensor) is not codec.spec.lossy


@pytest.mark.parametrize("name", codec_names())
def test_a_codec_draws_random_numbers_where_it_says_so_and_only_there(name):
    codec, tensor = codec_by_name(name), made((64, 16), torch.float32, 1)
    assert (bytes(codec.encode(tensor).payload) != bytes(codec.encode(tensor).payload)) is codec.spec.stochastic


@pytest.mark.parametrize("name", codec_names())
def test_a_codec_makes_as_many_bits_of_an_element_as_it_says(name):
    codec, elements = codec_by_name(name), 1 << 16
    assert round(codec.encoded_bytes((elements,), torch.float32) * 8 / elements) == codec.spec.bits


def test_in_a_family_every_width_is_there_once():
    specs = [codec_by_name(name).spec for name in codec_names()]
    assert len({(spec.family, spec.bits) for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("bits", "like", "name"),
    [
        (32, "fp32", "fp32"),
        (8, "fp32", "uniform8"),
        (4, "uniform8-channel", "uniform4-channel"),
        (8, "uniform8-channel", "uniform8-channel"),
        (32, "uniform8", "fp32"),
        (32, "fp16", "fp32"),
        (16, "fp32", "uniform16"),
        (16, "bf16", "bf16"),
        (3, "mbq4", "mbq3"),
        (8, "mbq4", "uniform8"),
    ],
)
def test_other_bits_are_of_the_same_family_or_of_a_common_one(bits, like, name):
    assert codec_of_bits(bits, like) == name


@given(bits=st.integers(0, 40), like=names)
def test_every_width_there_is_can_be_had_and_no_other(bits, like):
    if bits in bit_widths():
        assert codec_by_name(codec_of_bits(bits, like)).spec.bits == bits
    else:
        with pytest.raises(
            ConfigError, match=f"no codec has {bits} bits an element; there are {', '.join(map(str, bit_widths()))}"
        ):
            codec_of_bits(bits, like)


def test_an_unknown_name_is_answered_with_the_names_there_are():
    with pytest.raises(
        ConfigError, match=re.escape(f"'uniform9' does not exist; there are {', '.join(codec_names())}")
    ):
        codec_by_name("uniform9")


@pytest.mark.parametrize("name", codec_names())
def test_a_name_finds_the_codec_that_bears_it(name):
    assert codec_by_name(name).name == name
    assert codec_by_name(name).encode(torch.ones(3)).codec == name
