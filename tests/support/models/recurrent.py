"""A classifier of texts in four blocks: an embedding, two bidirectional LSTM layers of a block each, and what follows them."""

from torch import Tensor, nn


class Recurrent(nn.Module):
    """N x length of token numbers to N x classes."""

    def __init__(self, vocabulary: int = 50, width: int = 16, classes: int = 4, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.ModuleList(_Layer(inputs, width) for inputs in (width, 2 * width))
        self.head = _Head(2 * width, classes, dropout)

    def blocks(self) -> list[nn.Module]:
        return [self.embedding, *self.lstm, self.head]

    def forward(self, tokens_NT: Tensor) -> Tensor:
        value = tokens_NT
        for block in self.blocks():
            value = block(value)
        return value


class _Layer(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x_NTF: Tensor) -> Tensor:
        return self.lstm(x_NTF)[0]


class _Head(nn.Module):
    def __init__(self, inputs: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x_NTF: Tensor) -> Tensor:
        return self.linear(self.dropout(x_NTF.mean(dim=1)))
