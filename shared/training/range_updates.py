"""The update of ranges of parameters, one after the other, by the optimizer of the whole: with the same bits in the end.

The optimizer's state stays that of whole parameters, so that a checkpoint of it knows of no ranges. For a range, an optimizer
is made that has its elements as a parameter, with those of the state. What is counted for the whole, as updates are, goes on
for each range from where it was before the step.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shared.training.averages import Averages, follow
from shared.training.optimizers import Grouping, build_optimizer
from shared.training.recipe import Recipe
from shared.training.schedule import set_rates
from shared.training.slices import ParameterRange, Slice

State = dict[str, Any]


class RangeUpdates:
    """The updates of one optimizer, step after step."""

    def __init__(self, recipe: Recipe, grouping: Grouping) -> None:
        self._recipe = recipe
        self._grouping = grouping
        self._before: dict[str, tuple[int, State]] = {}
        """By parameter of which a range is updated: the step, and what was kept for the whole before it."""
        self._first_averaged: dict[str, int] = {}
        """By parameter, the step after whose update its average was begun here."""

    def forget(self) -> None:
        """Forget what was before a step, because another state was put in place."""
        self._before.clear()
        self._first_averaged.clear()

    def update(
        self,
        optimizer: torch.optim.Optimizer,
        learning: Mapping[str, nn.Parameter],
        one: Slice,
        gradients: Mapping[str, Tensor],
        step: int,
        rate_drops: int,
    ) -> None:
        """Update the ranges of a slice that have a gradient.

        learning: the parameters of its block. rate_drops: see `set_rates`.
        """
        there = {each.name: each for each in one.ranges if each.name in gradients}
        if not there:
            return
        elements = {name: nn.Parameter(each.of(learning[name].detach())) for name, each in there.items()}
        of_ranges = build_optimizer(elements, self._recipe.optimizer, self._grouping)
        set_rates(of_ranges.param_groups, self._recipe, step, rate_drops)
        for name, each in there.items():
            elements[name].grad = gradients[name]
            of_ranges.state[elements[name]] = self._state_before(optimizer, learning[name], each, step)
        of_ranges.step()
        for name, each in there.items():
            each.put(learning[name].detach(), elements[name].detach())
            _keep(optimizer.state[learning[name]], of_ranges.state[elements[name]], learning[name], each)

    def average(
        self, averages: Averages, learning: Mapping[str, nn.Parameter], one: Slice, step: int, decay: float
    ) -> None:
        """Have the averages of a slice's ranges follow its update of `step`, as `add_to_averages` has those of the whole."""
        for each in one.ranges:
            parameter = learning[each.name].detach()
            if (average := averages.get(learning[each.name])) is None:
                averages[learning[each.name]], self._first_averaged[each.name] = parameter.clone(), step
            elif self._first_averaged.get(each.name) == step:
                each.put(average, each.of(parameter))
            else:
                elements = each.of(average)
                follow(elements, each.of(parameter), decay)
                each.put(average, elements)

    def _state_before(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, each: ParameterRange, step: int
    ) -> State:
        """Return the state of a range before a step."""
        now = optimizer.state[parameter]
        begun = self._before.get(each.name)
        if begun is None or begun[0] != step:
            kept = {key: value if _is_of_elements(value, parameter) else _copied(value) for key, value in now.items()}
            begun = self._before[each.name] = step, kept
        return {
            key: each.of(now[key]) if _is_of_elements(value, parameter) else _copied(value)
            for key, value in begun[1].items()
        }


def _keep(state: State, of_range: State, parameter: nn.Parameter, each: ParameterRange) -> None:
    """Put the state of a range into that of its parameter."""
    for key, value in of_range.items():
        if not isinstance(value, Tensor) or value.shape != each.of(parameter).shape:
            state[key] = value
            continue
        if key not in state:
            state[key] = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
        each.put(state[key], value)


def _is_of_elements(value: object, parameter: nn.Parameter) -> bool:
    """Tell whether a tensor of the state has an element for each of the parameter's."""
    return isinstance(value, Tensor) and value.shape == parameter.shape


def _copied(value: Any) -> Any:  # an optimizer keeps numbers as well as tensors
    return value.clone() if isinstance(value, Tensor) else value
