"""torch's optimizers, built from a recipe so that every device applies the same operations in the same order."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from shared.training.recipe import OptimizerConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of one block, with the full learning rate; the caller sets each step's.

    parameters: at least one. Clipping is the caller's: it needs the whole block's gradient.
    foreach is off, because torch turns it on by itself on a GPU only, and it orders the operations differently.
    """
    learning_rate, weight_decay = config.learning_rate, config.weight_decay
    eps: dict[str, Any] = {} if config.eps is None else {"eps": config.eps}
    match config.name:
        case "sgd":
            return torch.optim.SGD(
                parameters,
                lr=learning_rate,
                momentum=config.momentum,
                nesterov=config.nesterov,
                weight_decay=weight_decay,
                foreach=False,
            )
        case "adam":
            return torch.optim.Adam(
                parameters, lr=learning_rate, betas=config.betas, weight_decay=weight_decay, foreach=False, **eps
            )
        case "adamw":
            return torch.optim.AdamW(
                parameters, lr=learning_rate, betas=config.betas, weight_decay=weight_decay, foreach=False, **eps
            )
        case "rmsprop":
            return torch.optim.RMSprop(
                parameters,
                lr=learning_rate,
                alpha=config.alpha,
                momentum=config.momentum,
                weight_decay=weight_decay,
                foreach=False,
                **eps,
            )


def state_keys(config: OptimizerConfig) -> frozenset[str]:
    """The names of the tensors that the optimizer keeps for a parameter once it has updated it."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = build_optimizer([parameter], config)
    optimizer.step()
    return frozenset(key for key, value in optimizer.state[parameter].items() if isinstance(value, torch.Tensor))
