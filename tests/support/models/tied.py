"""A model with tied weights: two layers of one block share their matrix."""

from torch import Tensor, nn


class TiedPair(nn.Module):
    """A hidden layer whose output layer has the hidden layer's own matrix, and a bias of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, value: Tensor) -> Tensor:
        """The pair, each with a nonlinearity."""
        return self.second(self.norm(self.first(value)).relu()).relu()


def tied(width: int = 24) -> nn.Module:
    """Four blocks for vectors of 64, the two in the middle with tied weights."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, width), nn.ReLU()), TiedPair(width), TiedPair(width), nn.Linear(width, 10)
    )


def tied_at_the_end(width: int = 10) -> nn.Module:
    """Four blocks for vectors of 64, the last two with one matrix."""
    last = nn.Linear(width, width)
    model = nn.Sequential(nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, width), last)
    model[2].weight = last.weight
    return model


class TiedText(nn.Module):
    """Tokens to scores of the token that is left out, by the table that the tokens are looked up in."""

    def __init__(self, width: int = 8, layers: int = 3, vocabulary: int = 20, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout)) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) to (B, vocabulary)."""
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x.mean(1)))
