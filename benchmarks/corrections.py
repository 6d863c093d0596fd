"""Corrections of late gradients, compared: `python -m benchmarks.corrections --data FOLDER [--seeds 0-2] [--json PATH]`.

A plain delayed loop trains small networks of paper 000 by SGD on 4,000 pictures of CIFAR-10 for five epochs. The gradients of
the device's blocks come K = 5 batches late, by feature replay; the others learn in time. Compared are weights that are
predicted along the momentum (Chen et al. 2018, arXiv 1809.02839), by a long, discounted momentum (Ajanthan et al. 2025, arXiv
2505.01099), and updates to which is added what the last one lacked, in the manner of error feedback (Zmushko et al. 2026, arXiv
2606.30634).

The bound is the largest curvature times the learning rate at which a quadratic loss does not diverge: the higher, the better.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.paper000.tasks import TASKS, Fewer
from benchmarks.support.arguments import benchmark_parser, numbers
from benchmarks.support.report import mean_and, write_json
from shared.model.build import build_checked_chain
from shared.registry.optimizers.sgd import LONG_DECAY, LONG_LEAD

STALENESS, EPOCHS, BATCH, SAMPLES = 5, 5, 32, 4000
RATE, WEIGHT_DECAY = 0.05, 1e-4
FALLS = (0.5, 0.75)
"""Shares of the steps after which the rate is a tenth."""
NETWORKS = {"residual": "resnet50", "separable": "mobilenetv3"}
"""The task of paper 000 whose small network it is."""
GAIN = 10.0
"""Times its rate that a gradient moves a weight in all: by a momentum of 0.9."""


@dataclass(frozen=True)
class Correction:
    """A way to update blocks whose gradients come late."""

    momentum: float = 0.9
    lead: float = 0.0
    """Times the way of the updates to come that weights are moved for a forward."""
    lacking: float = 0.0
    """Times that what the last update lacked of this one is added to it."""

    @property
    def share(self) -> float:
        """Return the part of a gradient that is added to the momentum, so that it counts `GAIN` times in all."""
        return GAIN * (1.0 - self.momentum)

    def way(self, updates: int) -> float:
        """Return the times of the momentum that weights are moved where so many updates are still to come."""
        return self.lead * sum(self.momentum**one for one in range(1, updates + 1))


ROWS: dict[str, Correction | None] = {
    "device alone": None,
    "uncorrected": Correction(),
    "predicted": Correction(lead=1.0),
    "updates with what they lacked": Correction(lacking=5.0),
    "predicted, momentum 0.99": Correction(momentum=LONG_DECAY, lead=LONG_LEAD),
    "updates with what they lacked, 0.99": Correction(momentum=0.99, lacking=8.0),
    "both, 0.99": Correction(momentum=0.99, lead=1.0, lacking=3.0),
}
"""None: all in time."""


def bound(correction: Correction) -> float:
    """Return the largest curvature times the rate at which the weight of a quadratic loss does not grow."""
    stable = 0.0
    for curvature in np.geomspace(1e-4, 6.0, 400):
        if max(abs(np.linalg.eigvals(_step_matrix(correction, curvature)))) > 1 + 1e-9:
            break
        stable = curvature
    return float(stable)


def _step_matrix(correction: Correction, curvature: float) -> NDArray[np.float64]:
    """Return one step on a weight, its momentum, and the weights of the last forwards, the newest first."""

    def after(state: NDArray[np.float64]) -> list[float]:
        weight, momentum, *forwards = state
        moved = correction.momentum * momentum + correction.share * curvature * forwards[-1]
        update = moved + correction.lacking * (moved - momentum)
        return [weight - update, moved, weight - correction.way(STALENESS) * momentum, *forwards[:-1]]

    return np.column_stack([after(one) for one in np.eye(2 + STALENESS)])


class Delayed:
    """The device's blocks, whose gradients come late."""

    def __init__(self, blocks: nn.Module, correction: Correction) -> None:
        self._blocks, self._correction = blocks, correction
        self._weights = list(blocks.parameters())
        self._momenta = [torch.zeros_like(weight) for weight in self._weights]
        self._pending: deque[tuple[Tensor, Tensor]] = deque()

    @torch.no_grad()
    def forward(self, pictures: Tensor, rate: float) -> Tensor:
        """Return features by weights that are predicted for the updates to come."""
        own = [weight.clone() for weight in self._weights]
        way = rate * self._correction.way(len(self._pending))
        for weight, momentum in zip(self._weights, self._momenta, strict=True):
            weight.sub_(momentum, alpha=way)
        features: Tensor = self._blocks(pictures)
        for weight, kept in zip(self._weights, own, strict=True):
            weight.copy_(kept)
        return features

    def take(self, pictures: Tensor, gradient: Tensor, rate: float) -> None:
        """Take an error gradient, and update by that of K batches before."""
        self._pending.append((pictures, gradient))
        if len(self._pending) > STALENESS:
            pictures, gradient = self._pending.popleft()
            self._blocks(pictures).backward(gradient)
            self._update(rate)

    @torch.no_grad()
    def _update(self, rate: float) -> None:
        for weight, momentum in zip(self._weights, self._momenta, strict=True):
            last = momentum.clone()
            assert weight.grad is not None
            gradient, weight.grad = weight.grad + WEIGHT_DECAY * weight, None
            momentum.mul_(self._correction.momentum).add_(gradient, alpha=self._correction.share)
            weight.sub_(momentum + self._correction.lacking * (momentum - last), alpha=rate)


def accuracy_percent(
    network: str, correction: Correction | None, seed: int, sets: Sequence[tuple[Tensor, Tensor]]
) -> float:
    """Train, and return the accuracy on the second of the sets."""
    task = TASKS[NETWORKS[network]]
    size = task.sizes["small"]
    (pictures, labels), (unseen, truth) = sets
    chain = build_checked_chain(size.factory, size.kwargs, seed, pictures[:BATCH])
    modules = [block.module for block in chain.blocks]
    first, last = nn.Sequential(*modules[: size.cut]), nn.Sequential(*modules[size.cut :])
    in_time = [*last.parameters(), *(first.parameters() if correction is None else ())]
    optimizer = torch.optim.SGD(in_time, momentum=0.9, weight_decay=WEIGHT_DECAY)
    late = None if correction is None else Delayed(first, correction)
    order = torch.Generator().manual_seed(seed)
    steps = EPOCHS * (len(labels) // BATCH)
    for step in range(steps):
        if step % (len(labels) // BATCH) == 0:
            batches = torch.randperm(len(labels), generator=order).split(BATCH)  # type: ignore[no-untyped-call]
        batch = batches[step % (len(labels) // BATCH)]
        optimizer.param_groups[0]["lr"] = rate = RATE * 0.1 ** sum(step >= share * steps for share in FALLS)
        features = first(pictures[batch]) if late is None else late.forward(pictures[batch], rate).requires_grad_()
        functional.cross_entropy(last(features), labels[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if late is not None:
            assert features.grad is not None
            late.take(pictures[batch], features.grad, rate)
    first.eval(), last.eval()
    with torch.no_grad():
        right = last(first(unseen)).argmax(1) == truth
    return 100 * float(right.double().mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the table."""
    parser = benchmark_parser("corrections", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data, as benchmarks.paper000 has it")
    parser.add_argument("--network", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    parser.add_argument("--rows", choices=ROWS, nargs="+", default=list(ROWS))
    parser.add_argument("--seeds", type=numbers, default=numbers("0-2"))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    task = TASKS["resnet50"]
    sets = [_columns(Fewer(task.dataset("small", split, chosen.data), count)) for split, count in _COUNTS.items()]
    table, results = Table("", *chosen.network, "bound"), []
    for name in chosen.rows:
        correction, cells = ROWS[name], []
        for network in chosen.network:
            found = [accuracy_percent(network, correction, seed, sets) for seed in chosen.seeds]
            results.append({"row": name, "network": network, "accuracy_percent": found})
            cells.append(mean_and(found, ".1f", of_mean=False))
        table.add_row(name, *cells, "" if correction is None else f"{bound(correction):.3f}")
    Console(width=100).print("Accuracy, %", table)
    write_json(chosen.json, "corrections", results=results)


_COUNTS = {"train": SAMPLES, "test": SAMPLES // 2}


def _columns(dataset: Fewer) -> tuple[Tensor, Tensor]:
    items = [dataset[index] for index in range(len(dataset))]
    return torch.stack([picture for picture, _ in items]), torch.tensor([int(label) for _, label in items])


if __name__ == "__main__":
    main()
