"""A model that falls into few blocks: its mask, which has the length in front, passes beside what layers hand on."""

from torch import Tensor, nn


class MaskedLayer(nn.Module):
    """Takes a mask beside the feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return features of shape (B, T, width)."""
        mixed = self.mix(x).relu()
        return self.out(mixed) * mask.t().unsqueeze(-1)


class MaskedEncoder(nn.Module):
    """Tokens to classes; the mask is made of the tokens."""

    def __init__(self, width: int, layers: int, classes: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(MaskedLayer(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (B, classes), for tokens of shape (B, T)."""
        mask = tokens.t().ne(0)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x.mean(1))


def encoder(width: int = 6, layers: int = 2, classes: int = 4, vocabulary: int = 50) -> MaskedEncoder:
    """A factory for configurations and commands."""
    return MaskedEncoder(width, layers, classes, vocabulary)
