"""Averages of weights over the updates, as torch's `AveragedModel` with `get_ema_multi_avg_fn` has them.

They are kept beside the parameters that learn, with who updates these; buffers and frozen parameters have none, because theirs
are those of the model.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

Averages = dict[nn.Parameter, Tensor]
"""The average of each parameter that an update has come to."""


def add_to_averages(averages: Averages, parameters: Iterable[nn.Parameter], decay: float) -> None:
    """Have averages follow parameters after an update: by 1 - decay of the way; the first is a copy."""
    with torch.no_grad():
        for parameter in parameters:
            if (average := averages.get(parameter)) is None:
                averages[parameter] = parameter.detach().clone()
            else:
                follow(average, parameter, decay)


def follow(average: Tensor, weights: Tensor, decay: float) -> None:
    """Move an average by 1 - decay of the way to weights."""
    if average.is_floating_point():
        average.lerp_(weights, 1 - decay)
    else:  # complex numbers, of which torch has no such step
        average.copy_(average * decay + weights * (1 - decay))


def averaged_state(module: nn.Module, averages: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a module with averages, by the names of its parameters, in the place of these."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    for tied in names.values():
        if (average := next((averages[name] for name in tied if name in averages), None)) is not None:
            state |= {name: average.to(state[name].device) for name in tied if name in state}
    return state
