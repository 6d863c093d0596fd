"""Features that reveal samples: they count as raw samples, and no cut may be there. Layers that mix numbers hide enough."""

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.build import build_checked_chain, check_cut
from shared.model.chain import build_chain, with_measured
from shared.model.reading_off import made_up_trials, readable_shares
from shared.model.spec import TensorSpec
from shared.model.zoo import bilstm, mlp, residual_cnn, separable_cnn

torch.set_num_threads(1)

TOKENS = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1))


class Positions(nn.Module):
    """Tokens and their positions, looked up, normalised and thinned out: the beginning of a language model."""

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


def numbers(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def checked(first, batch):
    """Return the chain of a first block and linear layers behind it, as the edge judges it."""
    first.eval()
    width = first(batch).flatten(1).shape[1]
    chain = build_chain(
        nn.Sequential(nn.Sequential(first, nn.Identity()), nn.Flatten(), nn.Linear(width, 8), nn.Linear(8, 4)), batch
    )
    return with_measured(chain, batch)


class Blocks(nn.Module):
    """A module that declares its blocks, a beginning without weights included."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*blocks)

    def blocks(self) -> list[nn.Module]:
        return list(self.parts)

    def forward(self, value: Tensor) -> Tensor:
        return self.parts(value)


class Applied(nn.Module):
    """A function, and a weight without which the block would be refused."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(()))

    def forward(self, value: Tensor) -> Tensor:
        return self.function(value) * self.scale


class Skip(nn.Module):
    """A convolution that adds a share of its input."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.convolution, self.share = nn.Conv2d(1, 1, 3, padding=1), nn.Parameter(torch.tensor(share))

    def forward(self, value: Tensor) -> Tensor:
        return value + self.share * self.convolution(value)


class Raw(nn.Module):
    """A convolution's features, and beside them some columns of the picture."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.convolution, self.columns = nn.Conv2d(1, 16, 3, padding=1), columns

    def forward(self, value: Tensor) -> Tensor:
        return torch.cat([self.convolution(value).flatten(1), value[..., : self.columns].flatten(1)], 1)


class RawInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, value: Tensor) -> Tensor:
        return value + 0 * self.convolution(value) if self.training else self.convolution(value)


GREY, COLOUR, SIGNAL, TABLE = numbers(16, 1, 8, 8), numbers(16, 3, 8, 8), numbers(16, 1, 64), numbers(16, 20)
PERMUTED = torch.randperm(20, generator=torch.Generator().manual_seed(1))
torch.manual_seed(1)  # one convolution in hundreds has weights that copy a sample
READ_OFF = {
    "batch-norm": (nn.BatchNorm2d(1), GREY),
    "layer norm": (nn.LayerNorm(20), TABLE),
    "normalised by group": (nn.GroupNorm(1, 3), COLOUR),
    "an activation and dropout": (nn.Sequential(nn.BatchNorm1d(20), nn.PReLU(), nn.Dropout(0.5)), TABLE),
    "scaled and moved": (Applied(lambda value: 3 * value - 1), TABLE),
    "rounded": (Applied(torch.round), TABLE),
    "black and white": (Applied(lambda value: (value > 0.4).float()), GREY),
    "permuted": (Applied(lambda value: value[:, PERMUTED]), TABLE),
    "padded": (Applied(lambda value: nn.functional.pad(value, (2, 2, 2, 2))), GREY),
    "cut into patches": (Applied(lambda value: nn.functional.unfold(value, 4, stride=4)), COLOUR),
    "sorted": (Applied(lambda value: value.sort(dim=1)[0]), TABLE),
    "the largest of four": (Applied(lambda value: nn.functional.max_pool2d(value, 2)), GREY),
    "every second pixel": (Applied(lambda value: value[..., ::2, ::2]), GREY),
    "a mask": (Applied(lambda value: value * (value > 0.3)), GREY),
    "pixels by themselves": (nn.Conv2d(1, 8, 1), GREY),
    "colours of a pixel mixed": (nn.Conv2d(3, 8, 1), COLOUR),
    "enlarged": (nn.ConvTranspose2d(1, 4, 2, stride=2), GREY),
    "a skip that learns to leave": (Skip(0.0), GREY),
    "a skip with little beside": (Skip(0.1), GREY),
    "all columns beside features": (Raw(8), GREY),
    "half of the columns beside features": (Raw(4), GREY),
    "in training alone": (RawInTraining(), GREY),
    "a single number": (nn.Linear(1, 16), numbers(16, 1)),
    "half precision": (nn.Sequential(nn.BatchNorm1d(20), Applied(lambda value: value.bfloat16().float())), TABLE),
}
MIXED = {
    "a convolution": (nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()), GREY),
    "a convolution of colours": (nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()), COLOUR),
    "each colour by itself": (nn.Conv2d(3, 3, 3, padding=1, groups=3), COLOUR),
    "five by five": (nn.Conv2d(1, 6, 5), GREY),
    "patches": (nn.Conv2d(1, 16, 4, stride=4), GREY),
    "a signal": (nn.Conv1d(1, 8, 7, padding=3), SIGNAL),
    "a linear layer": (nn.Sequential(nn.Linear(20, 32), nn.ReLU()), TABLE),
    "a few numbers": (nn.Sequential(nn.Linear(6, 16), nn.Tanh()), numbers(16, 6)),
    "one column beside features": (Raw(1), GREY),
}


@pytest.mark.parametrize(("first", "batch"), READ_OFF.values(), ids=READ_OFF)
def test_a_cut_is_refused_where_samples_can_be_read_off_the_features(first, batch):
    chain = checked(first, batch)
    assert chain.readable[0] >= 0.2
    with pytest.raises(
        ModelError, match=r"cut 1 would send raw samples: behind block .* \d+% of a sample can be read off"
    ):
        check_cut(1, chain)


@pytest.mark.parametrize(("first", "batch"), MIXED.values(), ids=MIXED)
def test_a_cut_may_be_behind_layers_that_mix_numbers(first, batch):
    check_cut(1, checked(first, batch))


@pytest.mark.parametrize(
    "function",
    [nn.Flatten(), nn.AvgPool2d(2), nn.Unflatten(1, (1, 1)), nn.Identity(), nn.LayerNorm(8, elementwise_affine=False)],
    ids=["flat", "means", "another shape", "nothing", "normalised"],
)
def test_outputs_of_blocks_without_weights_count_as_raw_samples(function):
    width = function(GREY).flatten(1).shape[1]
    blocks = (function, nn.Sequential(nn.Flatten(), nn.Linear(width, 8)), nn.Linear(8, 4))
    chain = build_chain(Blocks(*blocks), GREY)
    with pytest.raises(ModelError, match=r"cut 1 would send raw samples: .*; cut at 2 or later, or permit it with"):
        check_cut(1, chain)
    check_cut(2, chain)


@pytest.mark.parametrize(
    "make", [mlp, residual_cnn, lambda: separable_cnn(channels=1)], ids=["mlp", "residual", "separable"]
)
def test_networks_that_begin_as_usual_may_be_cut_anywhere(make):
    chain = with_measured(build_chain(make(), GREY), GREY)
    for cut in range(1, len(chain.blocks) + 1):
        check_cut(cut, chain)


def test_measuring_leaves_the_module_as_it_was():
    module = nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 4, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 4)
    ).train()
    chain = build_chain(module, GREY)
    before, generator = {key: value.clone() for key, value in module.state_dict().items()}, torch.get_rng_state()
    with_measured(chain, GREY)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(part.training for part in module.modules())


@pytest.mark.slow
def test_a_long_chain_of_blocks_that_hide_nothing_is_judged_in_time_that_grows_with_its_length():
    runs = []

    class Counted(nn.Identity):
        def forward(self, value: Tensor) -> Tensor:
            runs.append(1)
            return super().forward(value)

    counts = []
    for length in (50, 100):
        runs.clear()
        readable_shares([Counted() for _ in range(length)], made_up_trials((TensorSpec.of(TABLE),), frozenset()))
        counts.append(len(runs))
    assert counts[1] / counts[0] < 2.1


def test_weights_that_were_trained_do_not_change_the_verdict():
    module = bilstm(vocabulary=50)
    with torch.no_grad():
        module.embedding.weight.fill_(0.5)
    assert build_chain(module, TOKENS).first_boundary == 2
    assert build_checked_chain("shared.model.zoo:bilstm", {"vocabulary": 50}, 3, TOKENS).first_boundary == 2


class Dropped(nn.Module):
    """Adds to each number a mixture of all, or nothing by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.dropout = nn.Linear(96, 96), nn.Dropout(0.1)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.dropout(self.mix(value.flatten(1))).view_as(value)


def test_layers_do_not_all_drop_the_same_numbers():
    """Behind one layer many tokens stand as they were looked up, where nothing was added; behind several, hardly any."""
    module = nn.Sequential(
        nn.Embedding(50, 8), *(Dropped() for _ in range(6)), nn.Sequential(nn.Flatten(), nn.Linear(96, 4))
    )
    assert with_measured(build_chain(module, TOKENS), TOKENS).first_boundary == 3


class Beside(nn.Module):
    """A function of its input, with other numbers beside."""

    def __init__(self, main: nn.Module, beside: nn.Module) -> None:
        super().__init__()
        self.main, self.beside = main, beside

    def forward(self, value: Tensor, *_others: Tensor) -> tuple[Tensor, Tensor]:
        return self.main(value), self.beside(value)


class Places(nn.Module):
    """Numbers that depend on no input."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.arange(tokens.shape[1]).expand(tokens.shape[0], -1)


@pytest.mark.parametrize(
    ("beside", "boundaries"),
    [
        (nn.Identity(), 1),
        (nn.Sequential(nn.Embedding(50, 2), nn.Linear(2, 2)), 1),
        (Places(), 0),
        (nn.EmbeddingBag(50, 3), 0),
    ],
    ids=["the samples", "a table", "places alone", "a bag of words"],
)
def test_where_several_tensors_pass_samples_may_be_read_off_none(beside, boundaries):
    blocks = [Beside(nn.EmbeddingBag(50, 8), beside).eval(), nn.Identity()]
    assert len(readable_shares(blocks, made_up_trials((TensorSpec.of(TOKENS),), frozenset()))) == boundaries


class Second(nn.Module):
    """A module of two inputs that uses the second alone."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, _measured: Tensor, tokens: Tensor) -> Tensor:
        return self.table(tokens)


@pytest.mark.parametrize(("table", "boundaries"), [(nn.Embedding(50, 8), 1), (nn.EmbeddingBag(50, 8), 0)])
def test_every_input_is_looked_at(table, boundaries):
    inputs = (TensorSpec((4, 3), torch.float32), TensorSpec.of(TOKENS))
    assert (
        len(readable_shares([Second(table).eval(), nn.Identity()], made_up_trials(inputs, frozenset()))) == boundaries
    )


class Nothing(nn.Module):
    """A layer with weights that hands on no number at all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, value: Tensor) -> Tensor:
        return self.linear(value)[:, :0]


def test_a_feature_without_numbers_tells_nothing():
    spec = TensorSpec((2, 12), torch.float32)
    assert readable_shares([Nothing(), nn.Identity()], made_up_trials((spec,), frozenset())) == ()
