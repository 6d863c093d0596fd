"""Models of texts: recurrent ones and transformers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, CLASSES, LENGTH = 23, 3, 8


class CharLSTM(nn.Module):
    """The next character, by two layers of an LSTM that begin with zeros."""

    def __init__(self, hidden: int = 12, layers: int = 2) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        self.embedding = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, hidden, num_layers=layers, batch_first=True, dropout=0.2)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(hidden, WORDS)

    def init_hidden(self, batch_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return (
            torch.zeros(self.layers, batch_size, self.hidden, device=device),
            torch.zeros(self.layers, batch_size, self.hidden, device=device),
        )

    def forward(self, x: Tensor, hidden: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if hidden is None:
            hidden = self.init_hidden(x.size(0), x.device)
        output, hidden = self.lstm(self.embedding(x), hidden)
        return self.fc(self.dropout(output))


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        assert width % heads == 0
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd = heads, width
        self.flash = hasattr(F, "scaled_dot_product_attention")

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A language model whose head has the weights of its embedding, and that says how many tokens it takes."""

    def __init__(self, width: int = 8, heads: int = 2, layers: int = 2, block_size: int = 16) -> None:
        super().__init__()
        self.block_size = block_size
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(WORDS, width),
                "wpe": nn.Embedding(block_size, width),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(Block(width, heads) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, WORDS, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        _b, t = idx.size()
        assert t <= self.block_size, f"Cannot forward sequence of length {t}, block size is only {self.block_size}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](pos))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


class PositionalEncoding(nn.Module):
    def __init__(self, width: int, longest: int = 50) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        position = torch.arange(longest).unsqueeze(1)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(1, longest, width)
        pe[0, :, 0::2], pe[0, :, 1::2] = torch.sin(position * rates), torch.cos(position * rates)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[:, : x.size(1)]
        return self.dropout(x)


class TransformerClassifier(nn.Module):
    """torch's encoder with a mask of padding, and the mean of what is no padding."""

    def __init__(self, width: int = 8, layers: int = 3, *, packs: bool = True) -> None:
        super().__init__()
        self.width = width
        self.embedding, self.position = nn.Embedding(WORDS, width, padding_idx=0), PositionalEncoding(width)
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=packs)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        x = self.position(self.embedding(tokens) * math.sqrt(self.width))
        x = self.encoder(x, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).float()
        return self.classifier((x * kept).sum(1) / kept.sum(1).clamp(min=1.0))


class Translator(nn.Module):
    """torch's transformer, encoder and decoder, which is given what it should have said before."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.position = PositionalEncoding(width)
        self.transformer = nn.Transformer(width, 2, 2, 2, 16, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(width, WORDS)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        src, tgt = self.position(self.source(src)), self.position(self.target(tgt))
        return self.generator(self.transformer(src, tgt, tgt_mask=mask, tgt_is_causal=True))


class Encoder(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, 6), nn.GRU(6, hidden, batch_first=True)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        return self.gru(self.embedding(source))


class Decoder(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, 6), nn.GRU(6 + hidden, hidden, batch_first=True)
        self.attention, self.out = nn.Linear(hidden, hidden), nn.Linear(2 * hidden, WORDS)

    def forward(self, token: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        query = self.attention(hidden[-1]).unsqueeze(2)
        weights = torch.bmm(memory, query).softmax(1)
        context = (weights * memory).sum(1, keepdim=True)
        output, hidden = self.gru(torch.cat((self.embedding(token), context), 2), hidden)
        return self.out(torch.cat((output, context), 2)), hidden


class Seq2Seq(nn.Module):
    """A GRU that reads, and one that writes token by token with attention, and is told the true token each time."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(hidden), Decoder(hidden)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, hidden = self.encoder(source)
        outputs = []
        for t in range(target.shape[1]):
            output, hidden = self.decoder(target[:, t : t + 1], hidden, memory)
            outputs.append(output)
        return torch.cat(outputs, dim=1)
