"""Models that ask about shapes, types and arguments while they run, as people write them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, VOCABULARY = 8, 20


class Attention(nn.Module):
    """Causal self-attention, its mask cut out of a buffer."""

    def __init__(self, heads: int, longest: int) -> None:
        super().__init__()
        self.heads, self.longest = heads, longest
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`, (B, T, WIDTH)."""
        batch, length, width = x.size()
        assert length <= self.longest, f"{length} is longer than {self.longest}"
        q, k, v = self.project(x).split(width, dim=2)
        q, k, v = (each.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for each in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = F.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.norm, self.attention, self.second_norm = nn.LayerNorm(WIDTH), Attention(2, longest), nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        x = x + self.attention(self.norm(x))
        return x + self.narrow(F.gelu(self.wide(self.second_norm(x))))


class Gpt(nn.Module):
    """A language model: tokens (B, T) to scores (B, T, VOCABULARY)."""

    def __init__(self, layers: int = 3, longest: int = 12, *, tied: bool = False) -> None:
        super().__init__()
        self.longest = longest
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(longest, WIDTH)
        self.layers = nn.ModuleList(Layer(longest) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the scores of the next tokens, or the loss where `targets` are given."""
        device = tokens.device
        _, length = tokens.shape
        assert length <= self.longest, f"{length} tokens, and at most {self.longest} fit"
        positions = torch.arange(0, length, dtype=torch.long, device=device)
        x = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Asking(nn.Module):
    """Asks all that can be answered before there are contents."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.gate: nn.Module | None = None

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        """(B, T, WIDTH) to the same."""
        if not isinstance(x, Tensor) or x.dim() != 3 or not x.is_floating_point():
            raise TypeError("batches of sequences are needed")
        x = self.first(x).relu()
        if x.shape[1] > 3 and x.dtype == torch.float32 and x.size(-1) == WIDTH:
            x = x * 2
        if self.gate is not None:
            x = self.gate(x)
        x = self.second(x).relu()
        halves = x.shape[-1] // 2
        x = torch.cat([x[..., halves:], x[..., : x.shape[-1] - halves]], dim=-1)
        assert scale is None or scale > 0
        return self.third(x.reshape(x.shape[0], x.shape[1], WIDTH))


class Resized(nn.Module):
    """Scales its output to the size of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner, self.up = nn.Conv2d(1, 2, 3, stride=2), nn.Conv2d(2, 2, 1), nn.Conv2d(2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, H, W) to the same."""
        return F.interpolate(self.up(self.inner(self.down(x).relu()).relu()), size=x.shape[-2:])


def clipped(x: Tensor) -> Tensor:
    """A function that looks at contents."""
    return x / x.abs().max() if x.abs().max() > 1 else x


class Clipping(nn.Module):
    """Calls a function that looks at contents."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        return self.third(clipped(self.second(clipped(self.first(x))).relu()))


class Assigning(nn.Module):
    """Writes into tensors: one of its own making, one of a layer's, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`, (B, T, WIDTH)."""
        x = self.first(x)
        self.seen += 1
        shifted = torch.zeros_like(x)
        shifted[:, 1:] = x[:, :-1]
        x = self.second(shifted).relu()
        ramp = torch.ones(x.shape[1], 1)
        ramp[0] = 2.0
        return self.third(x * ramp)


class Doubled(torch.autograd.Function):
    """Twice its input, with a gradient of its own."""

    @staticmethod
    def forward(_ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 3


class OwnGradient(nn.Module):
    """Uses an operation with a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        return self.second(Doubled.apply(self.first(x)))


class Summed(nn.Module):
    """Goes through its batch sample by sample."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        return torch.stack([self.linear(x[index]) for index in range(x.shape[0])])


class Looping(nn.Module):
    """Goes through time step by step, which is another number of operations for another length."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.head = nn.Linear(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, WIDTH) to (B, 3)."""
        x = self.first(x)
        state = torch.zeros(x.shape[0], WIDTH)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.head(state)


class Encoder(nn.Module):
    """torch's own encoder, with or without a causal mask."""

    def __init__(self, layers: int = 3, *, causal: bool = False, by_argument: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.causal, self.by_argument = causal, by_argument
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(WIDTH) if norm else None)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to scores (B, T, VOCABULARY)."""
        x = self.embed(tokens)
        if not self.causal:
            return self.head(self.encoder(x))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.encoder(x, mask=mask, is_causal=True if self.by_argument else None))


class Padded(Encoder):
    """torch's own encoder with a mask of padding, which is made of its tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T), of which 0 is padding, to scores (B, T, VOCABULARY)."""
        return self.head(self.encoder(self.embed(tokens), src_key_padding_mask=tokens.eq(0)))


class Decoder(nn.Module):
    """torch's own decoder, which attends to a memory of zeros."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True), layers)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to scores (B, T, VOCABULARY)."""
        x = self.embed(tokens)
        memory = torch.zeros(x.shape[0], 1, WIDTH)
        return self.head(self.decoder(x, memory, tgt_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1])))


class Outputs(dict[str, Tensor]):
    """A dictionary whose entries are attributes, too."""

    def __setitem__(self, key: str, value: Tensor) -> None:
        super().__setitem__(key, value)
        setattr(self, key, value)


class LookingBody(nn.Module):
    """Looks at contents, and returns a dictionary of its own class."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Outputs:
        """One entry."""
        found = Outputs()
        x = self.linear(x)
        found["hidden"] = x * 2 if float(x.detach().max()) > 0 else x
        return found


class Opaque(nn.Module):
    """Takes what such a module returns by its attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(WIDTH, WIDTH), LookingBody(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        return self.head(self.body(self.first(x).relu()).hidden)


class Noisy(nn.Module):
    """Drops at a rate, and by a way, that follow its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        x = F.dropout(self.first(x), 0.3 if self.training else 0.0)
        x = F.gelu(self.second(x), approximate="tanh" if self.training else "none")
        return self.third(x.clamp(min=-1.0 if self.training else None, max=1.0))


class Skipping(nn.Module):
    """Needs no mask where nothing is padding, and does not look where it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T), of which 0 is padding, to scores (B, T, VOCABULARY)."""
        kept = tokens != 0
        x = self.tokens(tokens)
        skips = not torch.compiler.is_compiling() and bool(kept.all())
        for layer in self.layers:
            x = layer(x) if skips else layer(x).masked_fill(~kept.unsqueeze(-1), 0.0)
        return self.head(x)


class Body(nn.Module):
    """A transformer that adds places to tokens before its layers."""

    def __init__(self, longest: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(longest, WIDTH)
        self.layers = nn.ModuleList(Layer(longest) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to features (B, T, WIDTH)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return x


class Headed(nn.Module):
    """The same with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to scores (B, T, VOCABULARY)."""
        return self.head(self.body(tokens))


class Angles(nn.Module):
    """Cosines and sines of places, from a buffer that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", 1.0 / 10.0 ** torch.arange(0, 1, 2 / WIDTH), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, (T, WIDTH)."""
        angles = torch.outer(places.float(), self.rates).repeat(1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Turning(nn.Module):
    """A layer that turns its features by their places."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        left, right = self.mix(x).chunk(2, dim=-1)
        turned = torch.cat([left, right], -1) * cosines + torch.cat([-right, left], -1) * sines
        return x + self.out(turned.tanh())


class Rotary(nn.Module):
    """A decoder with rotary places, which are computed once for all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.angles = nn.Embedding(VOCABULARY, WIDTH), Angles()
        self.layers = nn.ModuleList(Turning() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to scores (B, T, VOCABULARY)."""
        x = self.tokens(tokens)
        cosines, sines = self.angles(x, torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x, cosines, sines)
        return self.head(x)
