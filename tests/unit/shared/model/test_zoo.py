"""Real networks become the expected chains: ours, torchvision's and timm's."""

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


@pytest.mark.slow
@pytest.mark.zoo
def test_features_of_resnet50_are_those_of_the_paper():
    """Paper 000, Table 3 gives these in MB for a batch of 32 images of 32 x 32. Its network has no pooling in the stem."""
    models = pytest.importorskip("torchvision.models")
    module = models.resnet50(weights=None, num_classes=10)
    module.conv1, module.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    chain = build_chain(module, TensorSpec((2, 3, 32, 32), torch.float32).example())
    mebibytes = [spec.bytes * 16 / 2**20 for (spec,) in chain.features]
    assert mebibytes[1:17] == [8.0, *[32.0] * 3, *[16.0] * 4, *[8.0] * 6, *[4.0] * 2]
    assert mebibytes[17] == 0.25


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
        (zoo.bilstm(), "8x12:int64<1000", ["embedding", "lstm.0", "lstm.1", "head"]),
        (zoo.bilstm(vocabulary=5, layers=1, classes=2), "3x1:int64<5", ["embedding", "lstm.0", "head"]),
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
