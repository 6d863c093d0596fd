"""The comparison of two machines' blocks: it finds different computations, whatever their weights and processors."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.behaviour import behaviour_of, first_difference
from shared.model.chain import build_chain
from shared.model.spec import TensorSpec
from shared.model.zoo import bilstm, mlp, residual_cnn, separable_cnn

torch.set_num_threads(1)
WIDTH = 24


class Hidden(nn.Module):
    """A layer with a nonlinearity in no submodule."""

    def __init__(self, activation) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(WIDTH, WIDTH), activation

    def forward(self, value: Tensor) -> Tensor:
        return self.activation(self.linear(value))


def network(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), *middle), nn.Linear(WIDTH, 3))


def behaviours(module: nn.Module, inputs: Tensor | None = None):
    return build_chain(module, torch.randn(4, WIDTH) if inputs is None else inputs).behaviours


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.ReLU(), nn.GELU()),
        (nn.GELU(), nn.SiLU()),
        (nn.LeakyReLU(0.01), nn.LeakyReLU(0.03)),
        (nn.ReLU(), nn.Identity()),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, eps=0.1)),
        (nn.BatchNorm1d(WIDTH, momentum=0.1), nn.BatchNorm1d(WIDTH, momentum=0.2)),
        (Hidden(F.relu), Hidden(F.gelu)),
    ],
    ids=["gelu", "silu", "slope", "missing", "dropout", "eps", "momentum", "functional"],
)
def test_another_computation_under_the_same_names_is_found(one, other):
    assert first_difference(behaviours(network(one)), behaviours(network(other))) == 1


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (mlp, torch.randn(8, 64)),
        (residual_cnn, torch.randn(5, 1, 8, 8)),
        (separable_cnn, torch.randn(4, 3, 16, 16)),
        (bilstm, torch.ones(4, 12, dtype=torch.int64)),
    ],
)
def test_other_weights_and_another_batch_are_the_same_computation(make, example):
    torch.manual_seed(1)
    one = build_chain(make(), example)
    torch.manual_seed(2)
    module = make()
    with torch.no_grad():
        for buffer in module.buffers():
            buffer.add_(1)
    other = build_chain(module, torch.cat([example, example]))
    assert all(one.behaviours)
    assert first_difference(one.behaviours, other.behaviours) is None


def test_rounding_of_another_processor_is_no_difference():
    ours = behaviours(network(nn.ReLU()))
    torch.manual_seed(0)
    rounded = [tuple(number * (1 + 1e-4 * float(torch.randn(()))) for number in each) for each in ours]
    assert first_difference(ours, rounded) is None


def test_a_block_that_cannot_run_on_made_up_numbers_is_not_compared():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Hardtanh(-1e-3, 1e-3), nn.Linear(WIDTH, 3))
    usual = behaviours(module)
    assert first_difference(usual, [(), *usual[1:]]) is None
    assert first_difference([(), *usual[1:]], usual) is None
    assert first_difference([(), *usual[1:]], [usual[0], *usual[1:-1], (1e-3, 9.0)]) == len(usual) - 1


class Minus(nn.Module):
    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.swapped = swapped

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return (other - one, one) if self.swapped else (one - other, one)


def test_tensors_of_one_kind_that_change_places_are_found():
    spec = TensorSpec((4, WIDTH), torch.float32)
    one, other, same = (
        behaviour_of(Minus(swapped), (spec, spec), frozenset(), draws_random=False) for swapped in (False, True, False)
    )
    assert first_difference([one], [other]) == 0
    assert first_difference([one], [same]) is None
