"""Models between whose blocks several tensors pass: skips, masks, and positions that follow from sizes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES, VOCABULARY, LENGTH, HEADS = 8, 3, 11, 6, 2


class UNet(nn.Module):
    """Two skips, one inside the other."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.down_1, self.down_2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.middle = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.up_2, self.up_1 = nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(8, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.down_1(x))
        second = F.relu(self.down_2(F.max_pool2d(first, 2)))
        bottom = self.middle(F.max_pool2d(second, 2))
        second = F.relu(self.up_2(torch.cat((F.interpolate(bottom, size=second.shape[-2:]), second), 1)))
        return self.up_1(torch.cat((F.interpolate(second, size=first.shape[-2:]), first), 1)).mean((2, 3))


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """hidden: numbers to add to the scores."""
        split = [each(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for each in (self.queries, self.keys, self.values)]
        scores = split[0] @ split[1].transpose(2, 3) + hidden
        mixed = (scores.softmax(-1) @ split[2]).transpose(1, 2).flatten(2)
        x = self.norm(x + self.dropout(mixed))
        return x + self.narrow(F.gelu(self.wide(x)))


class PaddedEncoder(nn.Module):
    """A mask of padding, made of the tokens, which every layer reads; positions follow from the length."""

    def __init__(self, vocabulary: int = VOCABULARY, classes: int = CLASSES) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(2 * LENGTH, WIDTH)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(3))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = (tokens == 0)[:, None, None, :]
        hidden = torch.zeros(padding.shape).masked_fill(padding, -1e4)
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, hidden)
        return self.head(x.mean(1))


class CausalLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.wide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        query, key, value = self.mix(self.norm(x)).chunk(3, -1)
        scores = (query @ key.transpose(1, 2)).masked_fill(hidden, float("-inf"))
        x = x + self.out(scores.softmax(-1) @ value)
        return x + self.wide(F.gelu(x))


class CausalModel(nn.Module):
    """A language model whose head has the weights of its embedding, with a mask that follows from the length."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(2 * LENGTH, WIDTH)
        self.layers = nn.ModuleList(CausalLayer() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.tokens(tokens) + self.positions(torch.arange(length))
        for layer in self.layers:
            x = layer(x, hidden)
        return self.head(self.norm(x))


class Biased(nn.Module):
    """A tensor that parameters have made and every layer reads, so that its error gradient has many parts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.table = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens).mean(1)
        bias = self.table(x).tanh()
        for layer in self.layers:
            x = layer(x).relu() * bias + bias.square()
        return self.head(x)


class Recommender(nn.Module):
    """Two inputs, each looked up in a table of its own, the second only in the middle."""

    def __init__(self, vocabulary: int = VOCABULARY, classes: int = CLASSES) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(vocabulary, WIDTH), nn.Embedding(vocabulary, WIDTH)
        self.user, self.item = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.both, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        known = self.user(self.users(user)).relu()
        found = self.item(self.items(item).mean(1)).relu()
        return self.head(self.both(torch.cat((known, found), 1)).relu())


class NamedEncoder(nn.Module):
    """Tokens with a mask of their own, by name, and one input that may be left out."""

    def __init__(self, vocabulary: int = VOCABULARY, classes: int = CLASSES) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, types: Tensor | None = None) -> Tensor:
        x = self.tokens(input_ids)
        if types is not None:
            x = x + types
        hidden = (~attention_mask)[:, None, None, :] * -1e4
        for layer in self.layers:
            x = layer(x, hidden)
        return self.head((x * attention_mask.unsqueeze(-1)).mean(1))


class SkippingPerceptron(nn.Module):
    """Four layers of which later ones read what two or three before have made."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, hidden), nn.Linear(hidden, hidden)
        self.three, self.four = nn.Linear(2 * hidden, hidden), nn.Linear(3 * hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        first = self.one(x).tanh()
        second = self.two(first).tanh()
        third = self.three(torch.cat((second, first), 1)).tanh()
        return self.four(torch.cat((third, second, first), 1))
