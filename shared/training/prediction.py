"""Correction of staleness: weights are predicted for the time at which a batch's own update comes, by the momentum.

Predicted weights are those of SpecTrain (Chen et al. 2018, arXiv 1809.02839) and XPipe (Guan et al. 2019, arXiv 1911.04610),
which let the momentum stay as it is; here it decays, as it does in the optimizer (Kosson et al. 2021, arXiv 2003.11666).

Under gradients that come K updates late, sgd diverges where the loss is curved far less than it may be otherwise: with a
momentum of 0.9 and K = 5, a 180th as much. Prediction by that momentum brings this to a 100th, and prediction by a momentum of
0.99, twice as far, to a 20th. Without a momentum it is a seventh, and with this one nearly as much as without lateness
(`tests/unit/shared/training/test_late_momentum.py`, `benchmarks/results/corrections.md`). So under sgd blocks whose updates
come late have such a momentum, under which a gradient moves a weight as far in all as before (Ajanthan et al. 2025, arXiv
2505.01099).

All follows from the optimizer's state, the recipe and the placement.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shared.registry.optimizers.spec import Momentum
from shared.training.recipe import Recipe
from shared.training.schedule import learning_rate


@torch.no_grad()
def predict(
    optimizer: torch.optim.Optimizer,
    momentum: Momentum,
    recipe: Recipe,
    copies: Sequence[tuple[nn.Parameter, Tensor]],
    steps: Sequence[int],
) -> None:
    """Move copies of parameters the way that the updates of these steps will take them, as far as the momentum alone decides.

    It is `Momentum.lead` times that way. copies: each parameter with one; a parameter may have several. steps: those whose
    updates are still to come, in their order. What this optimizer has not updated yet stays, as do weights that another worker
    updates.
    """
    for place, group in enumerate(optimizer.param_groups):
        members = set(group["params"])
        found = [
            (copy, state)
            for parameter, copy in copies
            if parameter in members and (state := optimizer.state.get(parameter, {})).get(momentum.key) is not None
        ]
        if found:
            way = sum(
                learning_rate(recipe, step, place) * momentum.decay**updates for updates, step in enumerate(steps, 1)
            )
            _move(momentum, [copy for copy, _ in found], [state for _, state in found], momentum.lead * way)


def set_late_momentum(optimizer: torch.optim.Optimizer, momentum: Momentum, *, is_late: bool) -> None:
    """Set the momentum for an update: this one where updates come late, else the optimizer's own."""
    for group in optimizer.param_groups:
        if not is_late:
            group.update({name: optimizer.defaults[name] for name in momentum.entries})
            for parameter in () if momentum.is_own else group["params"]:
                if parameter.grad is not None:
                    optimizer.state[parameter].pop(momentum.key, None)
            continue
        group.update(momentum.entries)
        for parameter in group["params"]:  # without the tensor the first gradient would count as several
            if parameter.grad is not None and momentum.key not in (state := optimizer.state[parameter]):
                state[momentum.key] = torch.zeros_like(parameter, requires_grad=False)


def _move(momentum: Momentum, copies: list[Tensor], states: list[dict[str, Any]], way: float) -> None:
    """Move the copies by so many times the update that the momentum alone would make at a learning rate of 1."""
    along = [state[momentum.key] for state in states]
    if momentum.square is None:
        torch._foreach_add_(copies, along, alpha=-way)
        return
    counts = [float(state["step"]) for state in states]
    roots = torch._foreach_sqrt([state[momentum.square] for state in states])
    torch._foreach_div_(roots, [(1 - momentum.square_decay**count) ** 0.5 for count in counts])
    torch._foreach_add_(roots, momentum.eps)
    torch._foreach_addcdiv_(copies, along, roots, [-way / (1 - momentum.decay**count) for count in counts])
