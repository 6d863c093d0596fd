"""The cuts of a module: where it has none, and what is said of that."""

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.build import check_cut
from shared.model.chain import build_chain
from tests.support.models.chains import WIDTH, Declared, example

torch.set_num_threads(1)


def test_a_cut_leaves_the_edge_a_block_and_may_leave_the_cloud_none():
    chain = build_chain(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)), example())
    for cut in (1, 2):
        check_cut(cut, chain)
    for cut in (-1, 0, 3):
        with pytest.raises(
            ModelError, match=rf"cut {cut} is out of range; this model has 2 blocks .* a cut is 1 to 2$"
        ):
            check_cut(cut, chain)


def test_an_output_without_the_batch_in_front_stays_where_the_last_block_is():
    flattened = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Flatten(0, 1)))
    chain = build_chain(flattened, example(4, 5, WIDTH))
    assert chain.outputs[0].shape == (20, WIDTH)
    for cut in (1, 2):
        check_cut(cut, chain)


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class Folded(nn.Module):
    """A module with batch and time in one dimension, or in two again."""

    def __init__(self, times: int | None) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1) if self.times is None else x.unflatten(0, (-1, self.times))


def layer() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


@pytest.mark.parametrize("batch_size", [4, 5])
@pytest.mark.parametrize("declared", [True, False], ids=["blocks()", "Sequential"])
@pytest.mark.parametrize("there_and_back", [(Turned(), Turned()), (Folded(None), Folded(4))], ids=["turned", "folded"])
def test_there_is_no_cut_where_the_batch_is_not_in_front(declared, there_and_back, batch_size):
    there, back = there_and_back
    parts = [layer(), nn.Sequential(layer(), there), layer(), nn.Sequential(layer(), back), layer()]
    module = Declared(*parts) if declared else nn.Sequential(*parts)
    chain = build_chain(module, example(batch_size, 4, WIDTH))
    assert len(chain.blocks) == 3
    assert [feature.shape for (feature,) in chain.features] == [(batch_size, 4, WIDTH)] * 4
    assert sorted(key for block in chain.blocks for key in block.named_parameters()) == sorted(module.state_dict())


def test_a_traced_model_has_no_cut_where_the_batch_is_not_in_front():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third, self.fourth = (layer() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.fourth(self.third(self.second(self.first(x).transpose(0, 1))).transpose(0, 1))

    chain = build_chain(Recurrent(), example(5, 4, WIDTH))
    assert [feature.shape[0] for (feature,) in chain.features] == [5] * len(chain.features)
    assert 2 <= len(chain.blocks) < 4


def test_a_model_with_the_batch_nowhere_in_front_is_refused_with_the_reason():
    with pytest.raises(ModelError, match="does not have the batch as its first dimension; use batch_first=True"):
        build_chain(
            nn.Sequential(nn.Sequential(layer(), Turned()), nn.Sequential(Turned(), layer())), example(5, 4, WIDTH)
        )


def test_tied_weights_are_named_where_they_leave_no_cut():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.middle, self.decoder = layer(), layer(), layer()
            self.decoder.weight = self.middle.weight = self.encoder.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.middle(self.encoder(x).relu()).relu())

    with pytest.raises(
        ModelError, match=r"'encoder\.weight' and '.*' and 'decoder\.weight' is one tensor, which 'encoder' and"
    ):
        build_chain(Tied(), example())


def test_tensors_beside_the_feature_are_named_where_they_leave_no_cut():
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            mean = x.mean(0)
            return mean + self.up(self.down(x).relu())

    with pytest.raises(
        ModelError, match=r"in front of 'up' there pass 'mean' \(\S+\.py:\d+\) and 'relu' \(\S+\.py:\d+\)"
    ):
        build_chain(Skipping(), example(4, 1, 8, 8))
