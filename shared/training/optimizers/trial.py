"""The trial of an optimizer that is named by its class: whether blocks on several workers can have it, each its own parameters.

Both sides do it before anything trains, with small parameters of their own.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from shared.errors import IsthmusError, ModelError
from shared.factory import Allowed
from shared.foreign import described, foreign_code
from shared.registry.optimizers import OptimizerConfig, spec_of
from shared.training.optimizers.building import build_optimizer, load_class, state_layout, takes_weight_decay

_SHAPES = {"matrix": (3, 5), "vector": (4,)}
_STEPS = 48
"""Enough for what an optimizer does every few steps."""
_MOVED_FROM = 5
Values = dict[str, dict[str, Tensor]]
"""The tensors of parameters by name: each value, and its state by key."""


def check_optimizer(config: OptimizerConfig, allowed: Allowed | None) -> None:
    """Refuse a class that is not allowed, or whose updates of a parameter depend on more than its gradient and state.

    allowed: see `load_factory`. Those of `OPTIMIZERS` are known. Raises ModelError, and NotAllowedError.
    """
    if spec_of(config).state is not None:
        return
    kind = load_class(config.name, allowed)
    what = f"optimizer {config.name!r}"
    decays = [config.weight_decay, *(group.weight_decay or 0.0 for group in config.groups)]
    if any(decays) and not takes_weight_decay(kind):
        raise ModelError(f"{what} takes no weight decay; leave weight_decay out")

    def refusal(cause: BaseException) -> IsthmusError:
        if isinstance(cause, IsthmusError):
            return cause
        return ModelError(
            f"{what} cannot update parameters with training.optimizer.kwargs and without a closure: {described(cause)}"
        )

    # One may take matrices alone; where it takes none of these, its training says why.
    names = tuple(name for name in _SHAPES if _takes(config, name)) or tuple(_SHAPES)
    with foreign_code(refusal):
        together = _trained(config, names)
        _check_state(what, together)
        apart: Values = {}
        for name in names:
            apart |= _trained(config, (name,))
        if not _same(together, apart):
            raise ModelError(
                f"{what} updates a parameter otherwise where it has others beside it, so the result would depend on the "
                "placement; choose one that updates each by itself"
            )
        if not _same(together, _trained(config, names, moved_from=_MOVED_FROM)):
            raise ModelError(
                f"{what} remembers something besides the tensors in its state, which would be lost where a block moves; "
                "keep it in state[parameter], as a tensor"
            )


def check_parameters(config: OptimizerConfig, module: nn.Module) -> None:
    """Refuse a parameter that learns and that the class of the optimizer does not take. Raises ModelError, which names it."""
    if spec_of(config).state is not None:
        return
    for name, parameter in module.named_parameters():
        try:
            state_layout(parameter, config)
        except ModelError as cause:
            raise ModelError(
                f"parameter {name!r} cannot learn: {cause}; name it in model.frozen, choose another optimizer, or name a class "
                "of your own that updates such parameters in another way"
            ) from cause


def _takes(config: OptimizerConfig, name: str) -> bool:
    try:
        state_layout(nn.Parameter(torch.zeros(_SHAPES[name])), config)
    except ModelError:
        return False
    return True


def _trained(config: OptimizerConfig, names: Sequence[str], moved_from: int = _STEPS) -> Values:
    """Train; returns values and state after some steps. moved_from: the step from which on other objects do each."""
    generator = torch.Generator().manual_seed(0)
    gradients = {name: torch.randn(_STEPS, *shape, generator=generator) for name, shape in _SHAPES.items()}
    parameters = {
        name: nn.Parameter(torch.linspace(-1, 1, gradients[name][0].numel()).view(_SHAPES[name])) for name in names
    }
    config = config.model_copy(update={"groups": ()})
    optimizer, keys = build_optimizer(parameters, config), list[Mapping[str, object]]()
    for step in range(_STEPS):
        for name, parameter in parameters.items():
            parameter.grad = gradients[name][step].clone()
        optimizer.step()
        keys.append({name: sorted(optimizer.state[parameter]) for name, parameter in parameters.items()})
        if step >= moved_from:
            arrived = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in parameters.items()}
            moved = build_optimizer(arrived, config)
            for name, parameter in arrived.items():
                state = optimizer.state[parameters[name]]
                moved.state[parameter] = {key: value.clone() for key, value in state.items()}
            parameters, optimizer = arrived, moved
    if any(each != keys[0] for each in keys):
        raise ModelError(
            f"optimizer {config.name!r} begins to keep something after its first update; a block's state must have the same "
            "tensors from its first update on"
        )
    return {name: {"": value.detach(), **optimizer.state[value]} for name, value in parameters.items()}


def _check_state(what: str, values: Values) -> None:
    for state in values.values():
        for key, value in state.items():
            if not isinstance(value, Tensor):
                raise ModelError(
                    f"{what} keeps a {type(value).__name__} in its state ({key}); only tensors move with a block, so keep it "
                    "as a tensor"
                )


def _same(one: Values, other: Values) -> bool:
    return all(
        one[name].keys() == other[name].keys()
        and all(torch.equal(one[name][key], other[name][key]) for key in one[name])
        for name in one
    )
