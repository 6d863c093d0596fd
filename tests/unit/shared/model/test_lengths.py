"""Batches of several lengths: the sizes that follow from the length, and models that take none but the example's."""

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.chain import build_chain
from shared.model.spec import TensorSpec

TOKENS = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(1))


class Headed(nn.Module):
    """Puts a token of its own in front, and classifies by it."""

    def __init__(self, positions: int = 20) -> None:
        super().__init__()
        self.tokens, self.first = nn.Embedding(11, 8), nn.Parameter(torch.randn(1, 1, 8))
        self.places = nn.Embedding(positions, 8)
        self.mixed = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(tokens), -1, -1), self.tokens(tokens)], 1)
        x = x + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.mixed(x)[:, 0])


def stacked(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 8), *layers)


class Turned(nn.Module):
    """Time behind channels, or back."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


@pytest.mark.parametrize("length", [1, 2, 5, 6])
def test_sizes_follow_from_the_length_with_a_token_more_in_front_too(length):
    chain = build_chain(Headed(), TOKENS, length_varies=True)
    assert chain.lengths is not None
    feature = TOKENS[:, :length]
    for index, block in enumerate(chain.blocks):
        spec = chain.lengths.spec(index, 0, chain.features[index][0], length)
        assert spec == TensorSpec.of(feature)
        assert chain.lengths.of(index, 0, feature.shape) == (length if chain.lengths.varies(index, 0) else None)
        feature = block.module(feature)
    assert not chain.lengths.varies(len(chain.blocks), 0), "classes do not depend on it"
    assert [chain.lengths.of(0, 0, (4, other)) for other in (0, 7)] == [None, None]


def test_declared_blocks_take_other_lengths_too():
    chain = build_chain(stacked(nn.Linear(8, 8), Turned(), nn.Conv1d(8, 8, 3, padding=1)), TOKENS, length_varies=True)
    assert chain.lengths is not None
    assert chain.lengths.spec(3, 0, chain.features[3][0], 2).shape == (4, 8, 2)


@pytest.mark.parametrize(
    ("module", "inputs", "sentence"),
    [
        (stacked(nn.Flatten(), nn.Linear(48, 3)), TOKENS, "fails in eval mode with a length of 5"),
        (
            stacked(Turned(), nn.Conv1d(8, 8, 2, stride=2), nn.AdaptiveAvgPool1d(1)),
            TOKENS,
            "what enters block 3 of Sequential has sizes that do not follow the length of a batch by a fixed step",
        ),
        (nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 3)), TOKENS[:, 0], "the inputs of Sequential have no length"),
    ],
)
def test_a_model_that_takes_no_other_length_is_refused(module, inputs, sentence):
    with pytest.raises(ModelError, match=sentence):
        build_chain(module, inputs, length_varies=True)


def test_labels_tell_the_length_of_the_outputs_that_they_are_for():
    chain = build_chain(stacked(nn.Linear(8, 11)), TOKENS, length_varies=True)
    assert [spec.shape for spec in chain.outputs_beside(TensorSpec((4, 3), torch.int64))] == [(4, 3, 11)]
    assert chain.outputs_beside(TensorSpec((4, 9), torch.int64)) == chain.outputs
    assert chain.outputs_beside(TensorSpec((4,), torch.int64)) == chain.outputs
