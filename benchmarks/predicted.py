"""Cost of predicted weights on the device: `python -m benchmarks.predicted [--pairs N] [--json PATH]`.

The blocks of a device train with K = 5 and feature replay, once with `deployment.staleness_correction = "prediction"` and once
without, in turn, step by step, in one process of one thread. Messages and codecs, which take as long either way, are left
out: a ratio of a whole step is nearer to 1. Times are those of the thread's processor.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.networks import small_cnn
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.report import Spread, write_json
from shared.model.chain import build_chain
from shared.model.zoo import mobilenetv3, separable_cnn, vgg19
from shared.registry import LossConfig, OptimizerConfig
from shared.registry.corrections import StalenessCorrection
from shared.training.device import prepare_process
from shared.training.policies import Replay
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import Stage, lone_stage

STALENESS = 5
BATCH = 32
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "small_cnn": (small_cnn, 1),
    "separable_cnn": (separable_cnn, 4),
    "mobilenetv3": (mobilenetv3, 6),
    "vgg19": (vgg19, 3),
}
"""Networks, and the number of their first blocks that the device has."""
OPTIMIZERS = {
    "sgd": OptimizerConfig(learning_rate=0.01, momentum=0.9),
    "adam": OptimizerConfig(name="adam", learning_rate=0.001),
}
_WARM_STEPS, _STEPS = STALENESS + 5, 10_000


@dataclass(frozen=True)
class Row:
    """A device's part of a network under an optimizer."""

    network: str
    optimizer: str
    weights_bytes: int
    """Bytes of the weights that are predicted."""
    plain_seconds: Spread
    """Processor time of a step without prediction."""
    ratio: Spread
    """A step with prediction over the one without beside it."""


class Training:
    """The device's steps: a batch begins, and the gradient of the one before the last K comes back."""

    def __init__(
        self, build: Callable[[], nn.Module], blocks: int, optimizer: OptimizerConfig, correction: StalenessCorrection
    ) -> None:
        torch.manual_seed(0)
        recipe = Recipe(
            optimizer=optimizer,
            schedule=ScheduleConfig(),
            loss=LossConfig(name="cross_entropy"),
            seed=0,
            steps_per_epoch=_STEPS,
            total_steps=_STEPS,
            staleness_correction=correction,
        )
        self._images = torch.randn(BATCH, 3, 32, 32)
        chain = build_chain(build(), self._images)
        self.stage: Stage = lone_stage(chain, 0, blocks, recipe, torch.device("cpu"))
        self._policy = Replay(self.stage)
        self._step = 0
        self._gradients: tuple[Tensor, ...] = ()

    def step(self) -> float:
        """Return the processor time of the next step."""
        began = time.thread_time()
        features = self._policy.forward(self._step, (self._images,))
        taken = time.thread_time() - began
        if not self._gradients:
            self._gradients = tuple(1e-6 * torch.randn_like(one) for one in features if one is not None)
        began = time.thread_time()
        if (returned := self._step - STALENESS) >= 0:
            self._policy.backward(returned, self._gradients)
            self.stage.update(returned, is_late=True)
        self._step += 1
        return taken + time.thread_time() - began


def measured(network: str, optimizer: str, pairs: int) -> Row:
    """Train with and without prediction, in turn."""
    build, blocks = NETWORKS[network]
    plain = Training(build, blocks, OPTIMIZERS[optimizer], "none")
    predicted = Training(build, blocks, OPTIMIZERS[optimizer], "prediction")
    seconds, ratios = [], []
    for pair in range(_WARM_STEPS + pairs):
        if pair % 2:
            of_plain, of_predicted = plain.step(), predicted.step()
        else:
            of_predicted, of_plain = predicted.step(), plain.step()
        if pair >= _WARM_STEPS:
            seconds.append(of_plain)
            ratios.append(of_predicted / of_plain)
    weights = sum(value.nbytes for block in plain.stage.blocks for value in block.module.parameters())
    return Row(network, optimizer, weights, Spread.of(seconds), Spread.of(ratios))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = benchmark_parser("predicted", __doc__)
    parser.add_argument("--pairs", type=int, default=40, help="steps of each (%(default)s)")
    parser.add_argument("--network", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    chosen = parser.parse_args(arguments)
    prepare_process(1)
    rows = [measured(network, optimizer, chosen.pairs) for network in chosen.network for optimizer in OPTIMIZERS]
    console = Console(width=110)
    console.print(
        f"{machine()}; K = {STALENESS}, {BATCH} samples of 3x32x32; median (quartiles) of {chosen.pairs} pairs of steps"
    )
    table = Table("device's part", "optimizer", "weights, MB", "step without, ms", "with / without")
    for row in rows:
        table.add_row(
            f"{row.network}, {NETWORKS[row.network][1]} blocks",
            row.optimizer,
            f"{row.weights_bytes / 1e6:.3f}",
            row.plain_seconds.show(1e3, 2),
            row.ratio.show(digits=3),
        )
    console.print(table)
    write_json(chosen.json, "predicted", rows=rows)


if __name__ == "__main__":
    main()
