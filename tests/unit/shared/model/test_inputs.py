"""Inputs of a model: a tensor, a tuple, or tensors by name; and what is refused of them."""

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.build import check_cut
from shared.model.chain import build_chain
from shared.model.spec import parse_examples
from tests.support.models.several import LENGTH, NamedEncoder, Recommender

TOKENS = torch.randint(11, (4, LENGTH))
NAMED = {"input_ids": TOKENS, "attention_mask": TOKENS > 2}
BOTH = torch.randint(11, (4,)), torch.randint(11, (4, 3))


def test_a_command_names_inputs_by_their_parameters():
    found = parse_examples("input_ids=8x6:int64<1000,attention_mask=8x6:bool")
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in found.items()} == {
        "input_ids": ((8, 6), torch.int64),
        "attention_mask": ((8, 6), torch.bool),
    }
    assert isinstance(parse_examples("8x6:bool"), torch.Tensor)


@pytest.mark.parametrize("text", ["a=2x3,a=2x3", "a=2x3,2x3", "no name=2x3", "=2x3", "a=2x3:bool<2", "a=", "a=2x3,"])
def test_what_names_no_inputs_is_refused(text):
    with pytest.raises(ModelError, match="example input"):
        parse_examples(text)


def test_a_key_that_the_forward_lacks_is_named_with_those_that_it_has():
    with pytest.raises(
        ModelError, match=r"key 'mask', which NamedEncoder\.forward\(\) does not take; .* input_ids, attention"
    ):
        build_chain(NamedEncoder(), {"input_ids": TOKENS, "mask": TOKENS > 2})


def test_a_parameter_without_an_input_is_named():
    with pytest.raises(ModelError, match="missing 1 required positional argument: 'attention_mask'"):
        build_chain(NamedEncoder(), {"input_ids": TOKENS})


def test_inputs_of_several_batch_sizes_are_refused():
    with pytest.raises(ModelError, match="the example inputs are of 4, 3 samples"):
        build_chain(Recommender(), (BOTH[0], BOTH[1][:3]))


def test_a_model_with_names_is_divided_between_its_layers():
    chain = build_chain(NamedEncoder(), NAMED)
    assert [block.name for block in chain.blocks] == ["tokens", "layers.0", "layers.1", "head"]
    assert chain.input_names == ("attention_mask", "input_ids")


def test_an_input_is_raw_at_every_cut_that_it_passes():
    chain = build_chain(NamedEncoder(), NAMED)
    mask, feature = chain.value(2, 0), chain.value(2, 1)
    assert (mask.feature, chain.is_raw(mask), mask.readers) == (0, True, (1, 2))
    assert feature.feature == 2
    assert chain.first_boundary == 3


class Later(nn.Module):
    """Mixes its first input, and looks the second up afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(LENGTH, 8), nn.Embedding(11, 8)
        self.mixed, self.head = nn.Linear(8, 8), nn.Linear(LENGTH * 8, 3)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        x = self.mixed(self.first(x).relu()).relu()
        return self.head((self.second(tokens) + x.unsqueeze(1)).flatten(1))


def test_what_a_later_block_looks_up_is_raw_too():
    chain = build_chain(Later(), (torch.randn(4, LENGTH), TOKENS))
    assert [block.name for block in chain.blocks] == ["first", "mixed", "second", "head"]
    assert len(chain.readable) == 0
    with pytest.raises(
        ModelError, match="cut 3 would send raw samples: what block 'second' makes of inputs passes there"
    ):
        check_cut(3, chain)
