"""An optimizer from its configuration: built so that every device applies the same operations in the same order."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from inspect import signature, unwrap
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.factory import Allowed, load_factory
from shared.foreign import described, foreign_code
from shared.model.footprint import UpdateMemory
from shared.model.learning import ParameterNames
from shared.registry.optimizers import OptimizerConfig, base_rates, settings_of, spec_of
from shared.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor that an optimizer keeps for a parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool
    """True if it stays in the host's memory wherever the parameter is."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


_SPARSE = ("sgd", "adagrad")
"""Optimizers that take the sparse gradients of an embedding that is made with sparse=True."""
_MOST_TRIED_ELEMENTS = 2**24
"""Most elements of a parameter for which a try takes memory, where an optimizer reads the numbers that it computes."""
StateLayout = dict[str, StateTensor]
"""The tensors kept for one parameter, by the keys of `torch.optim.Optimizer.state[parameter]`."""


class Grouping:
    """The group of each parameter: 0 for those in none of `optimizer.groups`, n for the n-th."""

    def __init__(self, config: OptimizerConfig) -> None:
        """Raises ModelError for a group with too many patterns."""
        self._groups = [
            ParameterNames(f"training.optimizer.groups[{place}].match", group.match)
            for place, group in enumerate(config.groups)
        ]

    def of(self, name: str) -> int:
        """Return the group of a parameter, by its name in the whole module."""
        return next((place for place, names in enumerate(self._groups, 1) if names.of(name)), 0)

    def check(self, module: nn.Module) -> None:
        """Refuse a name of a group that stands for no parameter that learns and is in no earlier group. Raises ModelError."""
        left = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        for names in self._groups:
            left -= names.chosen(left, "no parameter that learns and is in no earlier group")


def check_sparse(names: Iterable[str], recipe: Recipe) -> None:
    """Refuse parameters with sparse gradients, as of an embedding with sparse=True, where an update cannot take these.

    Raises ModelError.
    """
    config = recipe.optimizer
    grouping = Grouping(config)
    decays = (config.weight_decay, *(group.weight_decay for group in config.groups))
    for name in names:
        decay = decays[grouping.of(name)]
        if config.name not in _SPARSE:
            why = f"training.optimizer {config.name!r} takes none: choose one of {', '.join(_SPARSE)}"
        elif getattr(settings_of(config), "momentum", None):
            why = "momentum would be sparse, too, which no file takes: leave it out"
        elif recipe.optimizer_of_states != config:
            why = 'deployment.staleness_correction would update all of it each time, by a momentum: set it to "none"'
        elif config.clip_norm is not None:
            why = "clip_norm has no norm of them: leave it out"
        elif config.weight_decay if decay is None else decay:
            why = "weight_decay takes none: leave it out for this parameter, by a group of the optimizer"
        else:
            continue
        raise ModelError(f"the gradient of {name!r} is sparse, and {why}, or make the embedding with sparse=False")


def build_optimizer(
    parameters: Mapping[str, nn.Parameter], config: OptimizerConfig, grouping: Grouping | None = None
) -> torch.optim.Optimizer:
    """The optimizer of one block, with the full learning rates; the caller sets each step's.

    parameters: at least one, by their names in the whole module. grouping: of the same configuration, if it has been made.
    The optimizer has as many groups as `base_rates` has rates, empty ones too. The caller clips, because clipping needs the
    whole block's gradient.
    `foreach` is off in all of torch's optimizers: torch turns it on by itself on a GPU only, where it changes the order of
    the operations.
    """
    spec, settings = spec_of(config), settings_of(config)
    kind = _class_of(spec.implementation)
    # Every optimizer's own class takes these, which the base class does not.
    keywords = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay, **spec.keywords(settings)}
    if spec.state is None:
        keywords = _suited(kind, keywords)
    decays = (config.weight_decay if group.weight_decay is None else group.weight_decay for group in config.groups)
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": rate, "weight_decay": decay}
        for rate, decay in zip(base_rates(config), (config.weight_decay, *decays), strict=True)
    ]
    grouping = Grouping(config) if grouping is None else grouping
    for name, parameter in parameters.items():
        groups[grouping.of(name)]["params"].append(parameter)
    return kind(groups, **keywords)


@cache
def _class_of(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer of a name, `package.module:class`, which does not import torch's compiler. What a peer names was allowed.

    torch wraps these methods so that `torch.compile` may trace them. We never compile them, and the compiler takes 68
    MB and a second of every process that builds one. Their results are the same: no gradients are recorded in a step.
    """
    kind = load_class(name, None)
    changed = {"add_param_group": unwrap(kind.add_param_group)}
    if kind.__module__.startswith(
        ("torch.optim.", "shared.")
    ):  # what a user has wrapped around a step of his own stays
        changed["step"] = torch.no_grad()(unwrap(kind.step))
        changed["step"].hooked = True  # otherwise torch wraps it again, for hooks and a profiler that we do not use
    return type(kind.__name__, (kind,), changed)


def load_class(name: str, allowed: Allowed | None) -> type[torch.optim.Optimizer]:
    """Import the class of an optimizer. allowed: see `load_factory`, which raises the same; ModelError for another thing."""
    kind = load_factory(name, key="training.optimizer", allowed=allowed)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ModelError(f"optimizer {name!r} is no class of torch.optim.Optimizer")
    return kind


def takes_weight_decay(kind: type[torch.optim.Optimizer]) -> bool:
    """Tell whether a class of optimizers has weight decay."""
    return "weight_decay" in signature(kind).parameters


def _suited(kind: type[torch.optim.Optimizer], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a class that may take no weight decay, and that may take several parameters at once."""
    if not takes_weight_decay(kind):
        keywords = {key: value for key, value in keywords.items() if key != "weight_decay"}
    return keywords | ({"foreach": False} if "foreach" in signature(kind).parameters else {})


def state_layout(parameter: Tensor, config: OptimizerConfig) -> StateLayout:
    """Describe the state that the optimizer keeps for a parameter once it has updated it; empty where the parameter is frozen.

    The parameter may be on the meta device.
    """
    if not parameter.requires_grad:
        return {}
    if (state := spec_of(config).state) is None:
        alone = config.model_copy(update={"groups": ()})
        return _found_layout(alone.model_dump_json(), tuple(parameter.shape), parameter.dtype)
    shapes = state(tuple(parameter.shape), settings_of(config))
    # torch counts in float32, or in the wider type that is its default.
    counts = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
    return {
        key: StateTensor(kept.shape, counts if kept.is_count else parameter.dtype, kept.on_host)
        for key, kept in shapes.items()
    }


@lru_cache(maxsize=4096)
def _found_layout(config_json: str, shape: tuple[int, ...], dtype: torch.dtype) -> StateLayout:
    """Describe the state of a parameter by one step, without memory or, where the optimizer wants numbers, over zeros.

    Raises ModelError where the optimizer fails.
    """
    config = OptimizerConfig.model_validate_json(config_json)

    def refusal(cause: BaseException) -> ModelError:
        return ModelError(
            f"optimizer {config.name!r} cannot be tried on a parameter of shape {shape}: {described(cause)}"
        )

    failure: ModelError | None = None
    for device in ("meta", "cpu") if math.prod(shape) <= _MOST_TRIED_ELEMENTS else ("meta",):
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        parameter.grad = torch.zeros_like(parameter)
        try:
            with foreign_code(refusal):
                optimizer = build_optimizer({"": parameter}, config)
                optimizer.step()
        except ModelError as refused:
            failure = refused
            continue
        return {
            key: StateTensor(tuple(value.shape), value.dtype, device == "meta" and value.device.type == "cpu")
            for key, value in optimizer.state[parameter].items()
            if isinstance(value, Tensor)
        }
    assert failure is not None
    raise failure


def optimizer_bytes(parameters: Iterable[Tensor], config: OptimizerConfig) -> int:
    """Bytes that the optimizer keeps for these parameters; they may be on the meta device."""
    return sum(tensor.nbytes for parameter in parameters for tensor in state_layout(parameter, config).values())


def update_memory(recipe: Recipe) -> UpdateMemory:
    """Return the memory that updates take under a recipe."""
    copies = 1 + (recipe.accumulate_batches > 1) + (recipe.staleness_correction != "none") + (recipe.ema is not None)
    return UpdateMemory(partial(optimizer_bytes, config=recipe.optimizer_of_states), copies)
