"""Finds of curious trainers by attacks, where the product permits the data that they get by default and where it does
not.

    python -m benchmarks.privacy [--json PATH]

Digits and random tokens, first weights as both sides draw them. Each row is one attack on what crosses; "by default" says what
happens without `privacy.inputs_to` and `privacy.gradients_to`. It takes seconds and contacts nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.support import attacks
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.report import write_json
from edge_agent.data.named import load_dataset
from shared.errors import ConfigError
from shared.execution.model_facts import facts_of
from shared.model.chain import Chain, build_chain, with_measured
from shared.model.random_state import random_state
from shared.model.zoo import bilstm, mlp, residual_cnn
from shared.placement import Permissions, Placement, Rows, Tile, check, two_workers

SAMPLES, VOCABULARY, LENGTH = 256, 50, 12


@dataclass(frozen=True)
class Row:
    """One attack. found: the share of what it looks for that it finds. permitted: by default."""

    crosses: str
    attack: str
    permitted: bool
    found: float


class _Declared(nn.Module):
    """Says its blocks itself, so that none is joined with another."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*blocks)

    def blocks(self) -> list[nn.Module]:
        return list(self.parts)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.parts(value)
        return result


def measured() -> list[Row]:
    """All attacks."""
    with random_state(0, "benchmarks.privacy"), torch.enable_grad():
        return [*_of_pictures(), *_of_texts(), *_of_gradients()]


def _of_pictures() -> Iterator[Row]:
    pictures = _digits()[0]
    models = {
        "flattened digits": _Declared(nn.Flatten(), nn.Linear(64, 10)),
        "digits through batch-norm": _Declared(nn.BatchNorm2d(1), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))),
        "digits through a 1x1 convolution": nn.Sequential(
            nn.Conv2d(1, 8, 1), nn.Sequential(nn.Flatten(), nn.Linear(512, 10))
        ),
        "digits through the first block of the residual network": residual_cnn(dropout=0.0),
        "digits through the first block of the perceptron": mlp(),
    }
    for name, module in models.items():
        module.eval()
        chain = with_measured(build_chain(module, pictures[:32]), pictures[:32])
        first = chain.blocks[0].module
        with torch.no_grad():
            features = first(pictures)
        permitted = chain.first_boundary == 1
        flat = pictures.flatten(1)
        yield Row(name, "reading off", permitted, attacks.read_off(flat, features.flatten(1)))
        correlations = attacks.best_correlations(flat, features.flatten(1))
        yield Row(name, "correlation, median", permitted, float(correlations.median()))
        if features.dim() == 4 and permitted:
            guess = attacks.inverted(first, features[:8])
            error = (guess - pictures[:8]).abs().flatten(1).amax(1)
            yield Row(
                name, "inversion with known weights, within 10 %", permitted, float((error < 0.1).double().mean())
            )


def _of_texts() -> Iterator[Row]:
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH))
    known = torch.randint(VOCABULARY, (4 * SAMPLES, LENGTH))
    for recurrent in range(4):
        model = bilstm(vocabulary=VOCABULARY, layers=max(recurrent, 1), dropout=0.0).eval()
        chain = with_measured(build_chain(model, tokens), tokens)
        before = chain.blocks[: 2 if recurrent else 1]
        feature, expected = tokens, known
        for block in before:
            with torch.no_grad():
                feature, expected = block.module(feature), block.module(expected)
        rows = torch.stack([expected[known == token].mean(0) for token in range(VOCABULARY)])
        layers = f"an embedding and {recurrent} recurrent layer{'s' * (recurrent > 1)}" if recurrent else "an embedding"
        found = attacks.nearest_rows(tokens, feature, rows)
        permitted = chain.first_boundary <= len(before)
        yield Row(f"tokens through {layers}", "nearest row, with known weights", permitted, found)


def _of_gradients() -> Iterator[Row]:
    pictures, labels = _digits()
    flat = pictures.flatten(1)
    tokens = torch.randint(VOCABULARY, (2, LENGTH))
    text = bilstm(vocabulary=VOCABULARY, dropout=0.0)
    _backward(text(tokens), labels[:2] % 4)
    yield Row("gradient of an embedding", "counting tokens", _may_own(build_chain(text, tokens), 0), attacks.counted_tokens(
        tokens, _gradient(text.get_parameter("embedding.weight"))))  # fmt: skip
    for batch in (1, 4, 16):
        model = mlp(hidden=256)
        chain = build_chain(model, flat[:8])
        _backward(model(flat[:batch]), labels[:batch])
        first = chain.blocks[0].named_parameters()
        weight, bias = (_gradient(value) for value in first.values())
        found = attacks.samples_in_linear_gradient(flat[:batch], weight, bias)
        yield Row(f"gradient of a linear first layer, batch of {batch}", "rows over bias", _may_own(chain, 0), found)
        middle = chain.blocks[1].named_parameters()
        weight, bias = (_gradient(value) for value in middle.values())
        found = attacks.samples_in_linear_gradient(flat[:batch], weight[:, :64], bias)
        yield Row(f"gradient of the second layer, batch of {batch}", "rows over bias", _may_own(chain, 1), found)
    yield from _of_labels(flat, labels)


def _of_labels(flat: Tensor, labels: Tensor) -> Iterator[Row]:
    model = mlp()
    chain = build_chain(model, flat[:8])
    right = 0
    for sample, label in zip(torch.split(flat[:20], 1), labels[:20], strict=True):
        model.zero_grad()
        _backward(model(sample), label.reshape(1))
        right += (
            attacks.label_in_bias_gradient(_gradient(list(chain.blocks[-1].named_parameters().values())[1])) == label
        )
    last = len(chain.blocks) - 1
    yield Row(
        "gradient of the last block, batch of 1, labels stay", "smallest of the bias", _may_own(chain, last), right / 20
    )
    feature = nn.Sequential(*(block.module for block in chain.blocks[:-1]))(flat[:64]).detach().requires_grad_()
    head = chain.blocks[-1].module
    _backward(head(feature), labels[:64])
    weight = next(iter(chain.blocks[-1].named_parameters().values())).detach()
    found = attacks.labels_in_error_gradients(_gradient(feature), weight)
    yield Row(
        "error gradient before the last block, labels stay",
        "least squares, with known weights",
        _may_be_in_the_middle(chain),
        float((found == labels[:64]).double().mean()),
    )


def _may_own(chain: Chain, block: int) -> bool:
    """Tell whether a trainer may own a block by default of which it computes nothing, where labels stay."""
    here = two_workers("edge", "trainer", len(chain.blocks), len(chain.blocks), 8)
    owned = replace(here, owners={block: "trainer"})
    return _permitted(owned, chain)


def _may_be_in_the_middle(chain: Chain) -> bool:
    """Tell whether a trainer may have all blocks but the first and the last by default, where labels stay."""
    whole, last = Rows(0, 8), len(chain.blocks) - 1
    tiles = (Tile("edge", 0, 1, whole), Tile("trainer", 1, last, whole), Tile("edge", last, last + 1, whole))
    return _permitted(replace(two_workers("edge", "trainer", 1, last + 1, 8), tiles=tiles), chain)


def _permitted(placement: Placement, chain: Chain) -> bool:
    try:
        check(placement, facts_of(chain), Permissions(labels_to=frozenset({"edge"})))
    except ConfigError:
        return False
    return True


def _backward(outputs: Tensor, labels: Tensor) -> None:
    nn.functional.cross_entropy(outputs, labels).backward()  # type: ignore[no-untyped-call]


def _gradient(value: Tensor) -> Tensor:
    assert value.grad is not None, "a backward has been there"
    return value.grad


def _digits() -> tuple[Tensor, Tensor]:
    """Pictures of one channel with numbers from 0 to 1, and their labels."""
    data = load_dataset("edge_agent.data:digits", {})
    pictures, labels = zip(*(data[index] for index in range(SAMPLES)), strict=True)
    return torch.stack(pictures), torch.tensor([int(label) for label in labels])


def main() -> None:
    """Attack, and print one table."""
    arguments = benchmark_parser("privacy", __doc__).parse_args()
    rows = measured()
    table = Table("what crosses", "attack", "by default", "finds", title="what curious trainers find")
    for row in rows:
        table.add_row(row.crosses, row.attack, "permitted" if row.permitted else "refused", f"{row.found:.0%}")
    Console(width=140).print(table)
    write_json(arguments.json, "privacy", rows=rows)


if __name__ == "__main__":
    main()
