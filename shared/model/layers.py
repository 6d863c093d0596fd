"""Layers that the networks of the zoo are made of."""

import torch
from torch import Tensor, nn


def convolution(
    before: int,
    after: int,
    *,
    size: int = 3,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A convolution that keeps height and width but for its stride, batch-norm and an activation in place."""
    layers = [
        nn.Conv2d(before, after, size, stride=stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
    ]
    return nn.Sequential(*layers, *([] if activation is nn.Identity else [activation(inplace=True)]))


def doubling(before: int, after: int) -> nn.Module:
    """A transposed convolution that doubles height and width."""
    return nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)


def _divisible_by_8(channels: int) -> int:
    """Round to a multiple of 8, down by a tenth at most (Howard et al. 2019)."""
    near = max(8, (channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8


def separable(before: int, after: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, before, 3, stride=stride, padding=1, groups=before, bias=False),
        nn.BatchNorm2d(before),
        nn.ReLU(inplace=True),
        nn.Conv2d(before, after, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class ResidualBlock(nn.Module):
    """Two convolutions and a skip; more channels out than in go with half the height and width."""

    def __init__(self, before: int, after: int, dropout: float) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.first = convolution(before, after, stride=stride)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after))
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.second(self.dropout(self.first(x))) + self.skip(x))
        return y


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 and a skip."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.layers = nn.Sequential(
            convolution(before, width, size=1),
            convolution(width, width, stride=stride),
            convolution(width, after, size=1, activation=nn.Identity),
        )
        changes = before != after or stride != 1
        self.skip = (
            convolution(before, after, size=1, stride=stride, activation=nn.Identity) if changes else nn.Identity()
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.layers(x) + self.skip(x))
        return y


class InvertedBottleneck(nn.Module):
    def __init__(
        self,
        before: int,
        expanded: int,
        after: int,
        size: int,
        stride: int,
        *,
        attends: bool,
        activation: type[nn.Module],
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if expanded != before:
            layers.append(convolution(before, expanded, size=1, activation=activation))
        layers.append(convolution(expanded, expanded, size=size, stride=stride, groups=expanded, activation=activation))
        if attends:
            layers.append(_SqueezeExcite(expanded))
        self.layers = nn.Sequential(*layers, convolution(expanded, after, size=1, activation=nn.Identity))
        self.skips = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.skips else y


class _SqueezeExcite(nn.Module):
    """Weights channels by what is in all of them, a quarter as many in between."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        within = _divisible_by_8(channels // 4)
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, within, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(within, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x_NCHW: Tensor) -> Tensor:
        weighted: Tensor = x_NCHW * self.layers(x_NCHW)
        return weighted


class Recurrent(nn.Module):
    """Bidirectional LSTM layers, N x T x inputs to N x T x 2 hidden."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True, bidirectional=True)

    def forward(self, x_NTF: Tensor) -> Tensor:
        y_NTF: Tensor = self.lstm(x_NTF)[0]
        return y_NTF


class MeanOverTime(nn.Module):
    def forward(self, x_NTF: Tensor) -> Tensor:
        return x_NTF.mean(dim=1)


class Interest(nn.Module):
    """Looks up what is said of the user and the candidate, and weights the history by how near it is to the candidate."""

    def __init__(self, of_user: tuple[int, ...], items: int, genres: int, embedding: int) -> None:
        super().__init__()
        self.of_user = nn.ModuleList(nn.Embedding(count, embedding) for count in of_user)
        self.items = nn.Embedding(items, embedding)
        self.genres = nn.Embedding(genres, embedding)
        self.attention = nn.Sequential(nn.Linear(8 * embedding, 36), nn.PReLU(36), nn.Linear(36, 1))
        self.mixed = nn.Sequential(nn.Linear(8 * embedding, 8 * embedding), nn.PReLU(8 * embedding))

    def forward(self, user_N4: Tensor, candidate_N2: Tensor, history_NT2: Tensor) -> Tensor:
        user = [table(user_N4[:, place]) for place, table in enumerate(self.of_user)]
        candidate_NF = self._looked_up(candidate_N2)
        history_NTF = self._looked_up(history_NT2)
        asked_NTF = candidate_NF.unsqueeze(1).expand_as(history_NTF)
        compared = torch.cat([asked_NTF, history_NTF, asked_NTF - history_NTF, asked_NTF * history_NTF], dim=-1)
        count, length, width = compared.shape
        weights_NT1 = self.attention(compared.reshape(count * length, width)).reshape(count, length, 1)
        is_there_NT1 = (history_NT2[..., :1] > 0).to(weights_NT1.dtype)
        interest_NF = (weights_NT1 * is_there_NT1 * history_NTF).sum(dim=1)
        mixed: Tensor = self.mixed(torch.cat([*user, candidate_NF, interest_NF], dim=-1))
        return mixed

    def _looked_up(self, numbers: Tensor) -> Tensor:
        """Return the embeddings of items and their genres, ... x 2 to ... x 2 embedding."""
        return torch.cat([self.items(numbers[..., 0]), self.genres(numbers[..., 1])], dim=-1)
