"""Fine-tuning by what has changed of features: `python -m benchmarks.changes [--epochs N] [--seeds 0-4] [--json PATH]`.

A network is trained on the digits 0 to 4, and then fine-tuned on 5 to 9, with its first block frozen and the second on
the device: without augmentation, and with pictures that are shifted at random. Beside `deployment.changes` stand the device
alone, features at 32 and 8 bits, a codec of the largest elements with error feedback, and `deployment.recall` behind the frozen
block; then the same with no block frozen. Goal: a tenth of the bytes up at most, within 0.5 points of accuracy.

The device alone recalls, too. The device's processor time of a step is that from the second epoch on; by recall it shall be a
tenth of the time of the same cut at most. Accuracy and time: mean ± standard deviation over the seeds.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.support.arguments import benchmark_parser, numbers
from benchmarks.support.processes import trainer_process
from benchmarks.support.report import mean_and, write_json
from benchmarks.support.trained import trained
from edge_agent.data import TensorDataset, digits
from edge_agent.data.tensors import Split
from isthmus import EdgeConfig
from shared.config import load_config, toml_value
from shared.model.build import build_model
from shared.model.random_state import random_state
from shared.telemetry.logs import configure_logs

FACTORY, KWARGS = "shared.model.zoo:residual_cnn", {"width": 32, "blocks": 2, "classes": 10}
BATCH_SIZE, BLOCKS = 32, 4
_ALONE, _TWO_FROZEN = [f"deployment.cut={BLOCKS}"], 'model.frozen=["stem", "layers.0"]'
_ALL_LEARNS = ["model.frozen=[]", "model.frozen_mode=train"]
_CHANGES = ["deployment.codec=uniform8", "deployment.changes=topk1"]
ROWS: dict[str, tuple[str, list[str]]] = {
    "device alone": ("digits_above", _ALONE),
    "device alone, recall": ("digits_above", [*_ALONE, "deployment.recall=true"]),
    "alone, two frozen": ("digits_above", [*_ALONE, _TWO_FROZEN]),
    "alone, two frozen, recall": ("digits_above", [*_ALONE, _TWO_FROZEN, "deployment.recall=true"]),
    "32 bits": ("digits_above", []),
    "8 bits": ("digits_above", ["deployment.codec=uniform8"]),
    "8 bits, a block less": ("digits_above", ["deployment.cut=1", "deployment.codec=uniform8"]),
    "largest elements": ("digits_above", ["deployment.codec=topk1"]),
    "recall, a block less": (
        "digits_above",
        ["deployment.cut=1", "deployment.recall=true", "deployment.codec=uniform8"],
    ),
    "changes": ("digits_above", _CHANGES),
    "changes, 4 bits first": ("digits_above", ["deployment.codec=uniform4", "deployment.changes=topk1"]),
    "changes above 0.3, 4 bits": (
        "digits_above",
        [*_CHANGES, "deployment.changes=uniform4", "deployment.changes_above=0.3"],
    ),
    "all learns, 32 bits": ("digits_above", _ALL_LEARNS),
    "all learns, 8 bits": ("digits_above", [*_ALL_LEARNS, "deployment.codec=uniform8"]),
    "all learns, largest elements": ("digits_above", [*_ALL_LEARNS, "deployment.codec=topk1"]),
    "all learns, changes": ("digits_above", [*_ALL_LEARNS, *_CHANGES]),
    "shifted, 32 bits": ("Shifted", []),
    "shifted, 8 bits": ("Shifted", ["deployment.codec=uniform8"]),
    "shifted, changes": ("Shifted", _CHANGES),
}
"""Data set and flags, by the name of the row."""


@dataclass(frozen=True)
class Tuned:
    """A network that was fine-tuned."""

    row: str
    seed: int
    accuracy_percent: float
    """On the digits 5 to 9 of the test set."""
    bytes_up: int
    bytes_down: int
    step_processor_seconds: float
    """Processor time of the device, from the second epoch on."""


def digits_above(split: Split = "train") -> TensorDataset:
    """The digits 5 to 9."""
    return _some(split, above=True)


class Shifted:
    """The digits 5 to 9 of the training set, each moved by up to a pixel each way whenever it is read."""

    def __init__(self) -> None:
        self._digits = digits_above()

    def __len__(self) -> int:
        return len(self._digits)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self._digits[index]
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return torch.roll(image, (down, right), (1, 2)), torch.as_tensor(label)


def first_weights(seed: int, file: Path) -> None:
    """Train on the digits 0 to 4, and write the weights."""
    pictures, labels = _columns(_some("train", above=False))
    network = build_model(FACTORY, KWARGS, seed).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    with random_state(seed, "first weights"):
        for _ in range(6):
            for batch in torch.randperm(len(labels)).split(BATCH_SIZE):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(network(pictures[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    save_file(network.state_dict(), file)


def tuned(row: str, seed: int, epochs: int, weights: Path, address: str) -> Tuned:
    """Fine-tune as a row says."""
    dataset, flags = ROWS[row]
    done = trained(
        load_config(
            EdgeConfig,
            None,
            [
                f"trainer.address={address}",
                "trainer.insecure=true",
                f"model.factory={FACTORY}",
                f"model.kwargs={toml_value(KWARGS)}",
                'model.frozen=["stem"]',
                "model.frozen_mode=eval",
                f'data.train={{factory="benchmarks.changes:{dataset}"}}',
                f"data.batch_size={BATCH_SIZE}",
                f"training.start_from={weights}",
                f"training.seed={seed}",
                f"training.epochs={epochs}",
                "training.evaluate_every_epochs=0",
                'training.optimizer={name="adamw", learning_rate=0.003}',
                'training.schedule={name="cosine"}',
                "deployment.cut=2",
                *flags,
            ],
            environ={},
        )
    )
    pictures, labels = _columns(digits_above("test"))
    with torch.no_grad():
        right = done.result.module.eval()(pictures).argmax(1) == labels
    summary, accuracy = done.result.summary, 100 * right.double().mean().item()
    return Tuned(row, seed, accuracy, summary.bytes_up, summary.bytes_down, done.step_processor_seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fine-tune, and print the table."""
    parser = benchmark_parser("changes", __doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=numbers, default=numbers("0-4"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    chosen = parser.parse_args(arguments)
    if chosen.epochs < 2:
        parser.error("features are sent once, or as changes, from a second epoch on; give --epochs 2 or more")
    configure_logs("warning")
    torch.set_num_threads(1)
    results = list(_all(chosen.rows, chosen.seeds, chosen.epochs))
    Console(width=100).print(_table(results))
    write_json(chosen.json, "changes", epochs=chosen.epochs, results=[asdict(one) for one in results])


def _all(rows: Sequence[str], seeds: Sequence[int], epochs: int) -> Iterator[Tuned]:
    with tempfile.TemporaryDirectory() as folder, trainer_process(f"checkpoints.location={folder}") as address:
        for seed in seeds:
            weights = Path(folder) / f"first-{seed}.safetensors"
            first_weights(seed, weights)
            for row in rows:
                yield tuned(row, seed, epochs, weights, address)


def _table(results: Sequence[Tuned]) -> Table:
    table = Table("", "accuracy, %", "MB up", "of 32 bits up", "MB down", "device, ms a step", "seeds")
    rows = {row: [one for one in results if one.row == row] for row in dict.fromkeys(one.row for one in results)}
    whole = _mean([one.bytes_up for one in rows.get("32 bits", [])])
    for row, some in rows.items():
        up = _mean([one.bytes_up for one in some])
        accuracy = mean_and([one.accuracy_percent for one in some], ".2f", of_mean=False)
        share, down = f"{up / whole:.4f}" if whole else "", _mean([one.bytes_down for one in some])
        processor = mean_and([1e3 * one.step_processor_seconds for one in some], ".2f", of_mean=False)
        table.add_row(row, accuracy, f"{up / 1e6:.2f}", share, f"{down / 1e6:.2f}", processor, f"{len(some)}")
    return table


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _some(split: Split, *, above: bool) -> TensorDataset:
    pictures, labels = _columns(digits(split))
    wanted = (labels > 4) == above
    return TensorDataset(pictures[wanted], labels[wanted])


def _columns(dataset: TensorDataset) -> tuple[Tensor, Tensor]:
    samples = [dataset[index] for index in range(len(dataset))]
    return torch.stack([picture for picture, _ in samples]), torch.stack(
        [torch.as_tensor(label) for _, label in samples]
    )


if __name__ == "__main__":
    main()
