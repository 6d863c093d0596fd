"""Networks to try Isthmus with: small ones, and those of paper 000 (Table 1).

The small ones show the ways in which a module becomes a chain: `mlp` is an nn.Sequential, `bilstm` has a method `blocks()`,
the two small convolutional networks are ordinary modules that a trace divides. The features of paper 000's networks have the
sizes of its Table 3. Ordinary modules all: they know nothing of placements.
"""

from itertools import pairwise

from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.layers import (
    Bottleneck,
    Interest,
    InvertedBottleneck,
    MeanOverTime,
    Recurrent,
    ResidualBlock,
    convolution,
    doubling,
    separable,
)

MAX_DEPTH = 1000
"""Layers of a kind in one network: the arguments may be a peer's, and a list is made of them."""


def mlp(inputs: int = 64, hidden: int = 64, outputs: int = 10, depth: int = 3) -> nn.Module:
    """A multilayer perceptron of `depth` linear layers, ReLU between them; N x inputs, or images of as many pixels."""
    if not 2 <= depth <= MAX_DEPTH:
        raise ModelError(f"depth is {depth}; a multilayer perceptron has 2 to {MAX_DEPTH} linear layers")
    widths = [inputs, *[hidden] * (depth - 1)]
    layers = [nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)]
    return nn.Sequential(nn.Sequential(nn.Flatten(), *layers[0]), *layers[1:], nn.Linear(hidden, outputs))


def residual_cnn(
    channels: int = 1, classes: int = 10, width: int = 16, blocks: int = 3, dropout: float = 0.1
) -> nn.Module:
    """A small ResNet for N x channels x H x W, H and W of 8 or more; dropout inside the residual blocks."""
    _check_depth("blocks", blocks)
    return _ResidualCNN(channels, classes, width, blocks, dropout)


def separable_cnn(channels: int = 3, classes: int = 10, width: int = 16) -> nn.Module:
    """A small MobileNet of depthwise-separable convolutions for N x channels x H x W, H and W of 8 or more."""
    return _SeparableCNN(channels, classes, width)


def bilstm(
    vocabulary: int = 1000,
    embedding: int = 32,
    hidden: int = 32,
    layers: int = 2,
    classes: int = 4,
    dropout: float = 0.1,
    *,
    frozen: bool = False,
) -> nn.Module:
    """A classifier of texts, N x length of token numbers to N x classes. Paper 000's has an embedding and a hidden size of 200.

    Embedding, bidirectional LSTM layers, a linear layer with ReLU, the mean over time, a linear layer.
    frozen: the embedding does not learn.
    """
    _check_depth("layers", layers)
    return _BiLSTM(vocabulary, embedding, hidden, layers, classes, dropout, frozen=frozen)


def resnet50(classes: int = 10, *, imagenet: bool = False) -> nn.Module:
    """ResNet-50 (He et al. 2016, Table 1; the stride in the 3 x 3), N x 3 x 32 x 32 to N x classes.

    Its stem is one 3 x 3 convolution without a pool, as paper 000 has it; imagenet: the stem for N x 3 x 224 x 224.
    """
    stem = (
        convolution(3, 64, size=7, stride=2).append(nn.MaxPool2d(3, stride=2, padding=1))
        if imagenet
        else convolution(3, 64)
    )
    layers: list[nn.Module] = [stem]
    before = 64
    for width, depth, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(depth):
            layers.append(Bottleneck(before, width, first_stride if place == 0 else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(before, classes))


def vgg19(classes: int = 10) -> nn.Module:
    """VGG-19 (Simonyan and Zisserman 2015, column E) with batch-norm, N x 3 x 32 x 32 to N x classes."""
    layers: list[nn.Module] = []
    before = 3
    for width, depth in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(depth):
            layers.append(convolution(before, width))
            before = width
        layers[-1] = nn.Sequential(layers[-1], nn.MaxPool2d(2))
    first = nn.Sequential(nn.Flatten(), nn.Linear(before, 4096), nn.ReLU(), nn.Dropout())
    second = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout())
    return nn.Sequential(*layers, first, second, nn.Linear(4096, classes))


def mobilenetv3(classes: int = 10) -> nn.Module:
    """MobileNetV3-large (Howard et al. 2019, Table 1), N x 3 x 32 x 32 to N x classes.

    The stem and the first bottleneck of 24 channels keep height and width, as the features of paper 000, Table 3, do.
    """
    layers: list[nn.Module] = [convolution(3, 16, activation=nn.Hardswish)]
    before = 16
    for size, expanded, after, attends, activation, stride in _MOBILENETV3_LARGE:
        layers.append(InvertedBottleneck(before, expanded, after, size, stride, attends=attends, activation=activation))
        before = after
    last = nn.Sequential(
        convolution(before, 960, size=1, activation=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(960, 1280),
        nn.Hardswish(),
    )
    return nn.Sequential(*layers, last, nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes)))


def chair(inputs: int = 825, channels: int = 3) -> nn.Module:
    """A generator (after Dosovitskiy et al. 2017): N x inputs, one-hot class and transformation, to N x channels x 128 x 128.

    The features of its twelve layers are those of paper 000, Table 3, and of its published profile.
    """
    widths = [inputs, 400, 256, 256]
    dense = [nn.Sequential(nn.Linear(before, after), nn.LeakyReLU(0.2)) for before, after in pairwise(widths)]
    seed = nn.Sequential(nn.Linear(256, 4096), nn.LeakyReLU(0.2), nn.Unflatten(1, (256, 4, 4)))
    grown: list[nn.Module] = []
    for before, after in ((256, 256), (256, 92), (92, 48)):
        grown += [
            nn.Sequential(doubling(before, after), nn.LeakyReLU(0.2)),
            nn.Sequential(nn.Conv2d(after, after, 3, padding=1), nn.LeakyReLU(0.2)),
        ]
    last = nn.Sequential(doubling(6, channels), nn.Sigmoid())
    return nn.Sequential(*dense, seed, *grown, nn.Sequential(doubling(48, 6), nn.LeakyReLU(0.2)), last)


def din(
    users: int = 944,
    items: int = 1683,
    genres: int = 20,
    ages: int = 8,
    genders: int = 3,
    occupations: int = 22,
    embedding: int = 128,
) -> nn.Module:
    """A Deep Interest Network (Zhou et al. 2018): will this user like this item? Returns N x 2 logits.

    Its inputs are numbers, int64: of the user, N x 4 (user, age, gender, occupation); of the candidate, N x 2 (item, genre);
    and of the user's history, N x length x 2, where item 0 is none. Defaults: MovieLens 100k.
    The first block looks up, attends and mixes: 8 fields of `embedding` numbers, 0.125 MiB for 32 samples (paper 000, Table 3).
    """
    return _DeepInterest((users, ages, genders, occupations), items, genres, embedding)


def _check_depth(argument: str, depth: int) -> None:
    if not 1 <= depth <= MAX_DEPTH:
        raise ModelError(f"{argument} is {depth}; it must be 1 to {MAX_DEPTH}")


class _ResidualCNN(nn.Module):
    def __init__(self, channels: int, classes: int, width: int, blocks: int, dropout: float) -> None:
        super().__init__()
        widths = [width, *(width * 2 ** min(index, 2) for index in range(blocks))]
        self.stem = convolution(channels, width)
        self.layers = nn.Sequential(*(ResidualBlock(before, after, dropout) for before, after in pairwise(widths)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NC11: Tensor = self.pool(self.layers(self.stem(x_NCHW)))
        logits: Tensor = self.classifier(x_NC11.flatten(1))
        return logits


class _SeparableCNN(nn.Module):
    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.stem = convolution(channels, width)
        self.layers = nn.Sequential(
            separable(width, 2 * width, stride=2),
            separable(2 * width, 2 * width, stride=1),
            separable(2 * width, 4 * width, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NC11: Tensor = self.pool(self.layers(self.stem(x_NCHW)))
        logits: Tensor = self.classifier(x_NC11.flatten(1))
        return logits


class _BiLSTM(nn.Module):
    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, layers: int, classes: int, dropout: float, *, frozen: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding).requires_grad_(not frozen)
        self.lstm = Recurrent(embedding, hidden, layers)
        self.hidden = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Dropout(dropout))
        self.mean = MeanOverTime()
        self.classifier = nn.Linear(hidden, classes)

    def blocks(self) -> list[nn.Module]:
        return [self.embedding, self.lstm, self.hidden, self.mean, self.classifier]

    def forward(self, tokens_NT: Tensor) -> Tensor:
        value = tokens_NT
        for block in self.blocks():
            value = block(value)
        return value


_MOBILENETV3_LARGE = (
    (3, 16, 16, False, nn.ReLU, 1),
    (3, 64, 24, False, nn.ReLU, 1),
    (3, 72, 24, False, nn.ReLU, 1),
    (5, 72, 40, True, nn.ReLU, 2),
    *((5, 120, 40, True, nn.ReLU, 1),) * 2,
    (3, 240, 80, False, nn.Hardswish, 2),
    (3, 200, 80, False, nn.Hardswish, 1),
    *((3, 184, 80, False, nn.Hardswish, 1),) * 2,
    (3, 480, 112, True, nn.Hardswish, 1),
    (3, 672, 112, True, nn.Hardswish, 1),
    (5, 672, 160, True, nn.Hardswish, 2),
    *((5, 960, 160, True, nn.Hardswish, 1),) * 2,
)
"""The bottlenecks: size of the depthwise convolution, channels within and after, squeeze-and-excite, activation, stride."""


class _DeepInterest(nn.Module):
    def __init__(self, of_user: tuple[int, ...], items: int, genres: int, embedding: int) -> None:
        super().__init__()
        self.interest = Interest(of_user, items, genres, embedding)
        widths = [8 * embedding, 200, 80]
        hidden = [nn.Sequential(nn.Linear(before, after), nn.PReLU(after)) for before, after in pairwise(widths)]
        self.hidden = nn.Sequential(*hidden, nn.Linear(widths[-1], 2))

    def blocks(self) -> list[nn.Module]:
        return [self.interest, *self.hidden]

    def forward(self, user_N4: Tensor, candidate_N2: Tensor, history_NT2: Tensor) -> Tensor:
        logits_N2: Tensor = self.hidden(self.interest(user_N4, candidate_N2, history_NT2))
        return logits_N2
