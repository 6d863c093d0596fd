"""A first block that only looks its inputs up in a table passes on what counts as raw samples, and no cut may be there."""

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.build import build_checked_chain, check_cut
from shared.model.chain import build_chain
from shared.model.lookups import leading_lookups
from shared.model.spec import TensorSpec
from shared.model.zoo import bilstm, mlp

torch.set_num_threads(1)

TOKENS = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1))


class Positions(nn.Module):
    """Tokens and their places looked up, normalised and thinned out, as language models begin."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 8), nn.Embedding(12, 8)
        self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.norm(self.tokens(tokens) + self.places(places)))


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.attention, self.causal = nn.MultiheadAttention(8, 2, batch_first=True), causal

    def forward(self, value: Tensor) -> Tensor:
        mask = torch.ones(12, 12, dtype=torch.bool).triu(1) if self.causal else None
        return value + self.attention(value, value, value, attn_mask=mask, need_weights=False)[0]


@pytest.mark.parametrize(
    ("module", "first_cut"),
    [
        (bilstm(vocabulary=50), 2),
        (nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.Flatten(), nn.Linear(96, 4)), 4),
        (nn.Sequential(Positions(), Attention(causal=True), nn.Flatten(), nn.Linear(96, 4)), 2),
        (nn.Sequential(Positions(), Attention(causal=False), nn.Flatten(), nn.Linear(96, 4)), 2),
        (nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(96, 16), nn.Linear(16, 4)), 3),
        (nn.Sequential(nn.EmbeddingBag(50, 8), nn.Linear(8, 4)), 1),
    ],
    ids=["bilstm", "each token by itself", "causal", "attention", "columns of a table", "a bag of words"],
)
def test_a_cut_behind_lookups_alone_is_refused(module, first_cut):
    chain = build_chain(module, TOKENS)
    for cut in range(1, first_cut):
        with pytest.raises(
            ModelError, match=rf"cut {cut} would send raw samples: .*; cut at {first_cut} or later, or permit"
        ):
            check_cut(cut, chain)
    check_cut(first_cut, chain)
    permitted = build_chain(module, TOKENS, inputs_may_cross=True)
    check_cut(1, permitted)


def test_networks_of_numbers_that_are_measured_may_be_cut_anywhere():
    chain = build_chain(mlp(), torch.randn(4, 64))
    for cut in (1, 2, 3):
        check_cut(cut, chain)


def test_weights_that_were_trained_do_not_change_the_verdict():
    module = bilstm(vocabulary=50)
    with torch.no_grad():
        module.embedding.weight.fill_(0.5)
    assert build_chain(module, TOKENS).first_boundary == 2
    assert build_checked_chain("shared.model.zoo:bilstm", {"vocabulary": 50}, 3, TOKENS).first_boundary == 2


class Beside(nn.Module):
    """What it makes of its input, and something else beside it."""

    def __init__(self, main: nn.Module, beside: nn.Module) -> None:
        super().__init__()
        self.main, self.beside = main, beside

    def forward(self, value: Tensor, *_others: Tensor) -> tuple[Tensor, Tensor]:
        return self.main(value), self.beside(value)


class Places(nn.Module):
    """Follows from no number."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.arange(tokens.shape[1]).expand(tokens.shape[0], -1)


@pytest.mark.parametrize(
    ("beside", "lookups"),
    [
        (nn.Identity(), 1),
        (nn.Sequential(nn.Embedding(50, 2), nn.Linear(2, 2)), 1),
        (Places(), 0),
        (nn.EmbeddingBag(50, 3), 0),
    ],
    ids=["the samples", "a table", "places alone", "a bag of words"],
)
def test_where_several_tensors_pass_none_may_be_a_lookup(beside, lookups):
    block = Beside(nn.EmbeddingBag(50, 8), beside).eval()
    assert leading_lookups([block], (TensorSpec.of(TOKENS),), frozenset()) == lookups


class Second(nn.Module):
    """A module of two inputs that looks at the second alone."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, _measured: Tensor, tokens: Tensor) -> Tensor:
        return self.table(tokens)


@pytest.mark.parametrize(("table", "lookups"), [(nn.Embedding(50, 8), 1), (nn.EmbeddingBag(50, 8), 0)])
def test_every_input_of_integers_is_looked_at(table, lookups):
    measured, tokens = TensorSpec((4, 3), torch.float32), TensorSpec.of(TOKENS)
    assert leading_lookups([Second(table).eval()], (measured, tokens), frozenset()) == lookups
    assert leading_lookups([nn.Identity()], (measured,), frozenset()) == 0
