"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2): the sign of a momentum."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Lion(torch.optim.Optimizer):
    """One operation after the other, each elementwise, so that every device computes the same."""

    def __init__(
        self, parameters: list[nn.Parameter], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update every parameter that has a gradient. There is no closure: the caller has run the backward."""
        assert closure is None
        for group in self.param_groups:
            rate, (beta1, beta2) = group["lr"], group["betas"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                momentum = state["exp_avg"]
                direction = momentum.mul(beta1).add_(gradient, alpha=1 - beta1).sign_()
                parameter.mul_(1 - rate * group["weight_decay"]).add_(direction, alpha=-rate)
                momentum.mul_(beta2).add_(gradient, alpha=1 - beta2)
