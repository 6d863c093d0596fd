"""Inputs of a model: a tensor, a tuple, or tensors by name; and what is refused of them."""

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ConfigError, ModelError
from shared.model.build import check_cut
from shared.model.chain import build_chain, with_measured
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


def test_a_public_input_passes_everywhere_and_what_follows_from_others_does_not():
    chain = build_chain(NamedEncoder(), NAMED, public_inputs=["attention_mask"])
    mask, hidden, tokens = chain.value(1, 0), chain.value(2, 0), chain.value(1, 1)
    assert not chain.is_raw(mask)
    assert not chain.is_raw(hidden)
    assert chain.is_raw(tokens), "they are looked up"
    assert (chain.first_boundary, len(chain.readable)) == (2, 1)
    check_cut(2, chain)


def test_a_cut_that_sends_a_private_mask_names_it_and_the_key():
    with pytest.raises(
        ModelError,
        match=r"cut 2 would send raw samples: .* and the input 'attention_mask' passes there, for block 'layers.1'; cut at 3 "
        r"or later, or permit it .*; where that input tells nothing of a sample, privacy.public_inputs = "
        r'\["attention_mask"\] permits it',
    ):
        check_cut(2, build_chain(NamedEncoder(), NAMED))


@pytest.mark.parametrize(
    ("public", "sentence"),
    [
        (
            ["mask"],
            "privacy.public_inputs names 'mask', which is no input of the model; its inputs are attention_mask, ",
        ),
        (["attention_mask", "input_ids"], "names every input of the model, so whole samples would be public"),
    ],
)
def test_a_public_input_that_cannot_be_is_refused(public, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_chain(NamedEncoder(), NAMED, public_inputs=public)
    with pytest.raises(ConfigError, match="no input of the model; its inputs have no names"):
        build_chain(Recommender(), BOTH, public_inputs=public)


class Writing(NamedEncoder):
    """Writes what its tokens tell into what it made of its mask."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        bias = attention_mask.float()
        bias.sub_((input_ids == 0).float())
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x, bias[:, None, None, :])
        return self.head((x * bias.unsqueeze(-1)).mean(1))


def test_what_private_inputs_were_written_into_is_not_public():
    chain = build_chain(Writing(), NAMED, public_inputs=["attention_mask"])
    written = [value for value in chain.values.all if value.feature and not chain.has_parameters(value)]
    assert written
    assert all(map(chain.is_raw, written))


class Small(nn.Module):
    """Keeps few tokens beside a table of places, which is much larger."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mixed = nn.Embedding(11, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor, table: Tensor) -> Tensor:
        x = self.mixed(self.tokens(ids)).relu()
        return self.head((x * table.mean((1, 2))[:, None, None]).mean(1))


def test_the_share_that_can_be_read_off_is_that_of_private_inputs_alone():
    inputs = {"ids": torch.randint(11, (4, 3)), "table": torch.randn(4, 40, 40)}
    chain = build_chain(Small(), inputs, public_inputs=["table"])
    assert len(chain.readable) == 1
    assert chain.readable[0] == 1.0
    assert len(with_measured(chain, inputs).readable) >= 1


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
