"""Prediction of weights: where they will be when a batch's own update comes, if no gradient comes before that is not known yet.

After SpecTrain (Chen et al. 2018, arXiv 1809.02839) and XPipe (Guan et al. 2019, arXiv 1911.04610), which let the momentum
stay as it is; here it decays, as it does in the optimizer (Kosson et al. 2021, arXiv 2003.11666). It follows from the
optimizer's state and the recipe alone, and so has no state of its own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shared.registry.corrections import momentum_of
from shared.registry.optimizers.spec import Momentum
from shared.training.recipe import Recipe
from shared.training.schedule import learning_rate


@torch.no_grad()
def predict(
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    copies: Sequence[tuple[nn.Parameter, Tensor]],
    steps: Sequence[int],
) -> None:
    """Move copies of parameters to where the updates of these steps will take them, as far as the momentum alone decides.

    copies: each parameter with one; a parameter may have several. steps: those whose updates are still to come, in their order.
    What this optimizer has not updated yet stays, as do weights that another worker updates.
    """
    momentum = momentum_of(recipe.optimizer)
    assert momentum is not None, "the recipe refuses such an optimizer"
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
            _move(momentum, [copy for copy, _ in found], [state for _, state in found], way)


def _move(momentum: Momentum, copies: list[Tensor], states: list[dict[str, Any]], way: float) -> None:
    """Move the copies by so many times the update that the momentum alone would make at a learning rate of 1."""
    along = [state[momentum.key] for state in states]
    if momentum.square is None:
        torch._foreach_add_(copies, along, alpha=-way * momentum.share)
        return
    counts = [float(state["step"]) for state in states]
    roots = torch._foreach_sqrt([state[momentum.square] for state in states])
    torch._foreach_div_(roots, [(1 - momentum.square_decay**count) ** 0.5 for count in counts])
    torch._foreach_add_(roots, momentum.eps)
    torch._foreach_addcdiv_(copies, along, roots, [-way / (1 - momentum.decay**count) for count in counts])
