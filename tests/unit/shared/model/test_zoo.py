"""Real networks become the expected chains: ours, torchvision's and timm's."""

import math

import pytest
import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model import zoo
from shared.model.chain import Chain, build_chain
from shared.model.spec import TensorSpec, parse_example
from tests.support.torchvisions import torchvision_imported

torch.set_num_threads(1)

RESNET18 = ["conv1", *(f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)), "fc"]
RESNET50 = ["conv1", *(f"layer{s}.{b}" for s, depth in enumerate((3, 4, 6, 3), 1) for b in range(depth)), "fc"]
VGG16_BN = [f"features.{place}" for place in (0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40)]
VGG16_BN += ["classifier.0", "classifier.3", "classifier.6"]
MOBILENET_V3_LARGE = [*(f"features.{place}" for place in range(17)), "classifier.0", "classifier.3"]
DENSENET121 = ["features.conv0", "features.denseblock1"]
for stage in (1, 2, 3):
    DENSENET121 += [f"features.transition{stage}.conv", f"features.denseblock{stage + 1}"]
DENSENET121 += ["classifier"]
EFFICIENTNET_LITE0 = ["conv_stem", "blocks.0.0.conv_dw", "blocks.0.0.conv_pw"]
EFFICIENTNET_LITE0 += [f"blocks.{s}.{b}" for s, depth in ((1, 2), (2, 2), (3, 3), (4, 3), (5, 4)) for b in range(depth)]
EFFICIENTNET_LITE0 += ["blocks.6", "conv_head", "classifier"]


@pytest.fixture(scope="module", autouse=True)
def _torchvision():
    torchvision_imported()


def names(chain: Chain) -> list[str]:
    return [block.name for block in chain.blocks]


def gradients(module: nn.Module, output: Tensor) -> list[Tensor]:
    output.square().sum().backward()
    found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad(set_to_none=True)
    return found


def check_training(chain: Chain, inputs: Tensor) -> None:
    """Check that, cut in the middle, with only the feature and its gradient crossing, the gradients are the module's."""
    module, middle = chain.module.train(), len(chain.blocks) // 2
    torch.manual_seed(0)
    expected = gradients(module, module(inputs))
    torch.manual_seed(0)
    feature = inputs
    for block in chain.blocks[:middle]:
        feature = block.module(feature)
    received = feature.detach().requires_grad_()
    output = received
    for block in chain.blocks[middle:]:
        output = block.module(output)
    output.square().sum().backward()
    feature.backward(received.grad)
    found = [parameter.grad for parameter in module.parameters()]
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.first_case
@pytest.mark.zoo
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", RESNET18),
        pytest.param("resnet50", RESNET50, marks=pytest.mark.slow),
        pytest.param("vgg16_bn", VGG16_BN, marks=pytest.mark.slow),
        ("mobilenet_v3_large", MOBILENET_V3_LARGE),
        pytest.param("densenet121", DENSENET121, marks=pytest.mark.slow),
    ],
)
def test_torchvision(name, expected):
    models = pytest.importorskip("torchvision.models")
    module = models.get_model(name, weights=None)
    inputs = TensorSpec((2, 3, 64, 64), torch.float32).example()
    chain = build_chain(module, inputs)
    assert names(chain) == expected
    assert not any(block.modifies_input for block in chain.blocks)
    check_training(chain, inputs)


@pytest.mark.slow
@pytest.mark.zoo
def test_timm():
    timm = pytest.importorskip("timm")
    module = timm.create_model("efficientnet_lite0", pretrained=False)
    inputs = TensorSpec((2, 3, 64, 64), torch.float32).example()
    chain = build_chain(module, inputs)
    assert names(chain) == EFFICIENTNET_LITE0
    check_training(chain, inputs)


TABLE_3 = [
    pytest.param(
        zoo.resnet50,
        "2x3x32x32",
        [8.0, *[32.0] * 3, *[16.0] * 4, *[8.0] * 6, *[4.0] * 3, 0.25],
        id="resnet50",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        lambda: zoo.resnet50(20, imagenet=True),
        "2x3x224x224",
        [24.5, *[98.0] * 3, *[49.0] * 4, *[24.5] * 6, *[12.25] * 3, 0.25],
        id="resnet50 of 224 x 224",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        zoo.vgg19,
        "2x3x32x32",
        [8.0, 2.0, 4.0, 1.0, *[2.0] * 3, 0.5, *[1.0] * 3, *[0.25] * 4, 0.06, *[0.5] * 2],
        id="vgg19",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        zoo.mobilenetv3,
        "2x3x32x32",
        [*[2.0] * 2, *[3.0] * 2, *[1.25] * 3, *[0.63] * 4, *[0.88] * 2, *[0.31] * 3, 0.16],
        id="mobilenetv3",
    ),
    pytest.param(
        lambda: zoo.bilstm(vocabulary=20_000, embedding=200, hidden=200, classes=2),
        "2x128:int64<20000",
        [3.13, 6.25, 3.13, 0.02],
        id="bilstm",
    ),
    pytest.param(
        zoo.chair,
        "2x825",
        [0.05, *[0.03] * 2, 0.5, *[2.0] * 2, *[2.88] * 2, *[6.0] * 2, 3.0],
        id="chair",
    ),
    pytest.param(zoo.din, "2x4:int64<3,2x2:int64<20,2x50x2:int64<20", [0.125], id="din"),
]
"""The networks of paper 000, and what their blocks hand on, in MiB for a batch of 32. Its profile has the eleventh of chair."""


@pytest.mark.parametrize(("network", "example", "mebibytes"), TABLE_3)
def test_features_are_those_of_the_paper(network, example, mebibytes):
    chain = build_chain(network(), example_of(example))
    found = [sum(spec.bytes for spec in specs) * 16 / 2**20 for specs in chain.features[1:]]
    digits = 3 if len(mebibytes) == 1 else 2
    assert [_rounded(size, digits) for size in found[: len(mebibytes)]] == mebibytes
    assert len(chain.blocks) == len(mebibytes) + 1 or network is zoo.din


def _rounded(size: float, digits: int) -> float:
    """Round as the paper does, a half up."""
    return math.floor(size * 10**digits + 0.5) / 10**digits


def example_of(text: str) -> Tensor | tuple[Tensor, ...]:
    """Return the inputs that a text describes, a tuple where there are several."""
    parts = tuple(parse_example(part) for part in text.split(","))
    return parts[0] if len(parts) == 1 else parts


@pytest.mark.parametrize("attends", [True, False])
def test_an_interest_knows_its_history(attends):
    """Item 0 is none: what stands beside it changes nothing."""
    torch.manual_seed(0)
    network = zoo.din(embedding=4)
    user, candidate = torch.tensor([[1, 2, 1, 3]]), torch.tensor([[5, 6]])
    history = torch.tensor([[[7, 1], [9 if attends else 0, 2], [0, 0]]])
    changed = history.clone()
    changed[0, 1, 1] = 3
    assert torch.equal(network(user, candidate, history), network(user, candidate, changed)) is not attends


def test_a_frozen_embedding_does_not_learn():
    chain = build_chain(zoo.bilstm(frozen=True), parse_example("2x5:int64<1000"))
    assert [block.frozen for block in chain.blocks] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("module", "example", "expected"),
    [
        (zoo.mlp(), "8x64", ["0", "1", "2"]),
        (zoo.mlp(inputs=12, depth=2), "8x3x2x2", ["0", "1"]),
        (zoo.residual_cnn(), "8x1x8x8", ["stem", "layers.0", "layers.1", "layers.2", "classifier"]),
        (zoo.residual_cnn(channels=3, blocks=1, dropout=0.0), "2x3x13x9", ["stem", "layers", "classifier"]),
        (
            zoo.separable_cnn(),
            "8x3x8x8",
            ["stem", *(f"layers.{layer}.{place}" for layer in range(3) for place in (0, 3)), "classifier"],
        ),
        (zoo.bilstm(), "8x12:int64<1000", ["embedding", "lstm", "hidden", "mean", "classifier"]),
        (
            zoo.bilstm(vocabulary=5, layers=1, classes=2),
            "3x1:int64<5",
            ["embedding", "lstm", "hidden", "mean", "classifier"],
        ),
    ],
)
def test_our_own(module, example, expected):
    inputs = parse_example(example)
    chain = build_chain(module, inputs)
    assert names(chain) == expected
    check_training(chain, inputs)


def test_our_dropout_is_in_the_residual_blocks():
    chain = build_chain(zoo.residual_cnn(), parse_example("2x1x8x8"))
    assert [block.draws_random for block in chain.blocks] == [False, True, True, True, False]


def test_a_perceptron_has_two_layers():
    with pytest.raises(ModelError, match="depth is 1"):
        zoo.mlp(depth=1)
