"""Obstacles to cuts: for each two layers in one block, the explanation names the obstacle between them."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from edge_agent.experiment.model_report import explain
from shared.model.chain import Chain, build_chain
from tests.support.models.masked import MaskedEncoder, MaskedLayer, encoder
from tests.support.models.several import PaddedEncoder

WIDTH = 6


def example(*shape: int) -> Tensor:
    return torch.randn(shape or (5, WIDTH))


def line_of(function: object, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + index for index, line in enumerate(lines) if text in line]
    return f"{inspect.getsourcefile(function)}:{number}"


def said(chain: Chain) -> dict[tuple[str, str], str]:
    return {(seam.before, seam.after): seam.reason for seam in explain(chain)}


def test_an_encoder_is_cut_in_front_of_every_layer_although_a_mask_passes_beside():
    chain = build_chain(PaddedEncoder(), torch.randint(1, 10, (4, 6)))
    layers = [f"layers.{layer}" for layer in range(3)]
    assert [block.name for block in chain.blocks] == ["tokens", "positions", *layers, "head"]


def test_an_encoder_whose_mask_has_the_length_in_front_says_so_and_where_it_is_made():
    chain = build_chain(encoder(WIDTH), torch.randint(10, (4, 7)))
    assert [block.name for block in chain.blocks] == ["embed", "head"]
    found = said(chain)
    assert list(found) == [
        ("embed", "layers.0.mix"),
        ("layers.0.mix", "layers.0.out"),
        ("layers.0.out", "layers.1.mix"),
        ("layers.1.mix", "layers.1.out"),
    ]
    between_layers = found["layers.0.out", "layers.1.mix"]
    assert "in front of 'layers.1.mix' there pass" in between_layers
    assert line_of(MaskedEncoder.forward, "mask = tokens.t().ne(0)") in between_layers
    assert line_of(MaskedLayer.forward, "self.out(mixed) * mask") in between_layers


def test_a_tensor_without_the_batch_in_front_is_named_with_the_line_that_makes_it():
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            centre = x.mean(0)
            x = self.second(x)
            return self.third(x) - centre

    ((pair, reason),) = said(build_chain(Centred(), example())).items()
    assert pair == ("second", "third")
    assert "in front of 'third' there pass" in reason
    assert f"'mean' ({line_of(Centred.forward, 'centre = x.mean(0)')})" in reason


def test_a_chain_that_is_cut_in_front_of_every_layer_has_nothing_to_say():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.third(self.second(self.first(x).relu()).relu())

    chain = build_chain(Plain(), example())
    assert len(chain.blocks) == 3
    assert explain(chain) == []


def test_the_layers_of_a_residual_block_are_named_with_it():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.narrow(self.wide(x).relu())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Residual(), Residual()

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x))

    chain = build_chain(Net(), example())
    assert [block.name for block in chain.blocks] == ["one", "two"]
    found = said(chain)
    assert list(found) == [("one.wide", "one.narrow"), ("two.wide", "two.narrow")]
    assert "in front of 'one.narrow' there pass" in found["one.wide", "one.narrow"]
    assert "the input" in found["one.wide", "one.narrow"]


def test_a_call_that_is_kept_whole_for_its_siblings_is_named():
    class Maybe(nn.Module):
        def __init__(self, skips: bool) -> None:
            super().__init__()
            self.skips, self.wide, self.narrow = skips, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.narrow(self.wide(x).relu())
            return x + y if self.skips else y

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Maybe(True), Maybe(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x))

    found = said(build_chain(Net(), example()))
    reason = found["two.wide", "two.narrow"]
    assert "both are in 'two', and every Maybe stays whole, because in one the input and 'one.wide' (" in reason
    assert line_of(Maybe.forward, "self.narrow(self.wide(x)") in reason


def test_tied_weights_are_named():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.middle, self.decoder, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.decoder.weight = self.middle.weight = self.encoder.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.decoder(self.middle(self.encoder(x).relu()).relu()).relu())

    found = said(build_chain(Tied(), example()))
    assert list(found) == [("encoder", "middle"), ("middle", "decoder")]
    one = "'encoder.weight' and 'middle.weight' and 'decoder.weight' is one tensor, which 'encoder' and 'decoder' share"
    assert one in found["encoder", "middle"]


def test_layers_of_torch_and_untraceable_modules_run_unchanged():
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x)) if x.sum() > 0 else self.one(self.two(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True)
            self.looking, self.head = Looking(), nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.looking(self.encoder(x)))

    found = said(build_chain(Net(), example(4, 7, WIDTH)))
    assert "'encoder' is a TransformerEncoderLayer, which runs as it is" in found["encoder.linear1", "encoder.linear2"]
    looking = found["looking.one", "looking.two"]
    assert "'looking' is a Looking, which runs as it is: Looking at" in looking
    assert line_of(Looking.forward, "if x.sum() > 0") in looking


def test_blocks_that_the_model_declares_are_named_as_declared():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(
                [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, 2)]
            )

        def blocks(self) -> list[nn.Module]:
            return list(self.parts)

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[1](self.parts[0](x))

    assert said(build_chain(Own(), example())) == {
        ("parts.0.0", "parts.0.1"): "Own.blocks() says that they are one block"
    }
    nested = nn.Sequential(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, 2))
    ((pair, reason),) = said(build_chain(nested, example())).items()
    assert pair == ("0.0", "0.1")
    assert "make them children of their own" in reason


@pytest.mark.parametrize("mode", [True, False])
def test_explaining_leaves_the_model_as_it_was(mode):
    model = encoder(WIDTH).train(mode)
    chain = build_chain(model, torch.randint(10, (4, 7)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    explain(chain)
    assert model.training is mode
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
