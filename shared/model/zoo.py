"""Small networks to try Isthmus with, each written in one of the ways in which a module becomes a chain.

`mlp` is an nn.Sequential, `bilstm` has a method `blocks()`, the two convolutional networks are ordinary modules that
a trace divides. Ordinary modules all: they know nothing of blocks or placements.
"""

from itertools import pairwise

from torch import Tensor, nn

from shared.errors import ModelError

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
) -> nn.Module:
    """A classifier of texts, N x length of token numbers: bidirectional LSTM layers, mean over time, a linear layer."""
    _check_depth("layers", layers)
    return _BiLSTM(vocabulary, embedding, hidden, layers, classes, dropout)


def _check_depth(argument: str, depth: int) -> None:
    if not 1 <= depth <= MAX_DEPTH:
        raise ModelError(f"{argument} is {depth}; it must be 1 to {MAX_DEPTH}")


class _ResidualCNN(nn.Module):
    def __init__(self, channels: int, classes: int, width: int, blocks: int, dropout: float) -> None:
        super().__init__()
        widths = [width, *(width * 2 ** min(index, 2) for index in range(blocks))]
        self.stem = _convolution(channels, width)
        self.layers = nn.Sequential(*(_ResidualBlock(before, after, dropout) for before, after in pairwise(widths)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NC11: Tensor = self.pool(self.layers(self.stem(x_NCHW)))
        logits: Tensor = self.classifier(x_NC11.flatten(1))
        return logits


class _ResidualBlock(nn.Module):
    """Two convolutions and a skip; more channels out than in go with half the height and width."""

    def __init__(self, before: int, after: int, dropout: float) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.first = _convolution(before, after, stride=stride)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after))
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.second(self.dropout(self.first(x))) + self.skip(x))
        return y


class _SeparableCNN(nn.Module):
    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.stem = _convolution(channels, width)
        self.layers = nn.Sequential(
            _separable(width, 2 * width, stride=2),
            _separable(2 * width, 2 * width, stride=1),
            _separable(2 * width, 4 * width, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NC11: Tensor = self.pool(self.layers(self.stem(x_NCHW)))
        logits: Tensor = self.classifier(x_NC11.flatten(1))
        return logits


class _BiLSTM(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.ModuleList(
            _BidirectionalLayer(embedding if index == 0 else 2 * hidden, hidden) for index in range(layers)
        )
        self.head = _MeanHead(2 * hidden, classes, dropout)

    def blocks(self) -> list[nn.Module]:
        return [self.embedding, *self.lstm, self.head]

    def forward(self, tokens_NT: Tensor) -> Tensor:
        value = tokens_NT
        for block in self.blocks():
            value = block(value)
        return value


class _BidirectionalLayer(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x_NTF: Tensor) -> Tensor:
        y_NTF: Tensor = self.lstm(x_NTF)[0]
        return y_NTF


class _MeanHead(nn.Module):
    def __init__(self, inputs: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x_NTF: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.dropout(x_NTF.mean(dim=1)))
        return logits


def _convolution(before: int, after: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


def _separable(before: int, after: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, before, 3, stride=stride, padding=1, groups=before, bias=False),
        nn.BatchNorm2d(before),
        nn.ReLU(inplace=True),
        nn.Conv2d(before, after, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )
