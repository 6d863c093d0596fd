"""Gain of sending a block's state before training stands still: `python -m benchmarks.migration_ahead`.

What learns has changed when the cut moves a few steps later, and the migration has to be exact: so after the drain the
difference would have to follow, and only what it is smaller than the state itself shortens the pause. The network of the
prediction benchmark is trained in this process; the state of all its blocks, as a migration carries it, is held against that
of some steps later. Both are compressed without loss: the bits in which two floats differ (exclusive or), all first bytes
before all second ones, zlib at its quickest level. The whole, compressed alike, stands beside. Nothing is timed.
"""

import zlib
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.prediction import flags
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.deployed import Deployed
from benchmarks.support.machine import machine
from benchmarks.support.report import write_json
from edge_agent.experiment.experiment import Experiment
from isthmus import EdgeConfig
from shared.config import load_config
from shared.model.features import features_of
from shared.training.losses import LossHead
from shared.training.stage import lone_stage

OPTIMIZERS = {
    "sgd, momentum 0.9": ('training.optimizer.name="sgd"', "training.optimizer.momentum=0.9"),
    "adam": ('training.optimizer.name="adam"', "training.optimizer.learning_rate=0.001"),
}
FROM_STEP = 200
"""By then the weights are past their first leaps."""
STEPS_AHEAD = (1, 6, 12, 30)
"""6 is what a drain at K = 5 takes; a link on which a move takes long needs more."""
LEVEL = 1


@dataclass(frozen=True)
class Row:
    """Bytes to send after the drain, as parts of the state."""

    optimizer: str
    steps_ahead: int
    difference: float
    whole: float
    """Nothing sent ahead, but compressed."""


def states(settings: tuple[str, ...]) -> dict[int, list[Tensor]]:
    """All tensors of all blocks after `FROM_STEP` steps and after each of `STEPS_AHEAD` more, by steps ahead."""
    steps = FROM_STEP + max(STEPS_AHEAD)
    config = load_config(EdgeConfig, None, [*flags("127.0.0.1:1", Deployed(1, 0, 32), steps), *settings], environ={})
    experiment = Experiment(config)
    stage = lone_stage(experiment.chain, 0, len(experiment.chain.blocks), experiment.recipe, experiment.held.device)
    head = LossHead(experiment.recipe.loss, None)
    found: dict[int, list[Tensor]] = {}
    for batch in experiment.loader.iterate(0, steps):
        graph = stage.forward(batch.step, batch.features, input_gradient=False)
        _, gradients = head.gradient(features_of(graph.outputs), batch.labels)
        stage.backward(graph, gradients)
        stage.update(batch.step)
        ahead = batch.step + 1 - FROM_STEP
        if ahead in (0, *STEPS_AHEAD):
            tensors = (stage.held.block_tensors(block.index).values() for block in experiment.chain.blocks)
            found[ahead] = [tensor.detach().clone() for block in tensors for tensor in block]
    return found


def compressed_bytes(tensor: Tensor, before: Tensor | None) -> int:
    """Bytes of a tensor, or of its difference from what it was `before`, compressed where that makes it smaller."""
    planes = _bytes_of(tensor) if before is None else _bytes_of(tensor) ^ _bytes_of(before)
    return min(len(zlib.compress(planes.T.contiguous().numpy().tobytes(), LEVEL)), tensor.nbytes)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, 1).contiguous().view(torch.uint8)


def measure(name: str, settings: tuple[str, ...]) -> list[Row]:
    """One optimizer."""
    found = states(settings)
    total = sum(tensor.nbytes for tensor in found[0])
    whole = sum(compressed_bytes(tensor, None) for tensor in found[0]) / total
    return [
        Row(name, ahead, sum(map(compressed_bytes, found[ahead], found[0])) / total, whole) for ahead in STEPS_AHEAD
    ]


def main() -> None:
    """Train, and print a table."""
    parser = benchmark_parser("migration_ahead", __doc__)
    arguments = parser.parse_args()
    rows = [row for name, settings in OPTIMIZERS.items() for row in measure(name, settings)]
    drawn = Table("optimizer", "steps since it was sent", "the difference, of the state", "the whole, of the state")
    for row in rows:
        drawn.add_row(row.optimizer, str(row.steps_ahead), f"{row.difference:.0%}", f"{row.whole:.0%}")
    console = Console(width=150)
    console.print(f"{machine()}; compressed without loss")
    console.print(drawn)
    write_json(arguments.json, "migration_ahead", rows=rows)


if __name__ == "__main__":
    main()
