"""The way from a model's name to its chain, which both sides go at the beginning of a session, with the same result."""

import functools
import json
from collections.abc import Callable, Collection, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.factory import Allowed, load_factory
from shared.foreign import described, foreign_code, place_of
from shared.model.budget import BuildLimits, bounded_build
from shared.model.chain import Chain, build_chain
from shared.model.division.declared import declared_blocks
from shared.model.inputs import Inputs
from shared.model.learning import Learning
from shared.model.random_state import random_state

MAX_KWARGS_CHARACTERS = 64 * 1024
MAX_KWARGS_DEPTH = 16
ALL_LEARN = Learning()
_GIVEN = "_isthmus_given"
"""The attribute of a parameter that a factory has given."""
_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module"}
"""Types of modules that stand for the one inside, by their names: torch._dynamo, which has one, takes seconds to import."""
_NO_FILE = "both sides run the factory; let it load a file only where the file is: the trainer gets the edge's weights"


def build_model(
    factory: str,
    kwargs: Mapping[str, Any],
    seed: int,
    *,
    allowed: Allowed | None = None,
    limits: BuildLimits | None = None,
) -> nn.Module:
    """Make the module that `factory` (`package.module:factory`) returns for `kwargs`, its weights drawn from `seed`.

    Of a module that `torch.compile` or `nn.DataParallel` has made it is the one inside, because a forward of theirs cannot be
    divided. All of it is in training mode, as a loop's `train()` would have it, whatever the factory has left in which mode.
    limits: see `bounded_build`. Raises ModelError when the name is not allowed or not there, when the factory
    fails, or returns no module; TooLargeError beyond the limits.
    """
    make = load_factory(factory, allowed=allowed)

    def failure(cause: BaseException) -> ModelError:
        place = f" ({place})" if (place := place_of(cause)) else ""
        hint = f"; {_NO_FILE}" if isinstance(cause, OSError) else ""
        return ModelError(f"factory {factory!r} failed with {described(cause)}{place}{hint}")

    with bounded_build(limits), foreign_code(failure), random_state(seed, "weights"):
        module = make(**kwargs)
    if not isinstance(module, nn.Module):
        raise ModelError(f"factory {factory!r} returned {type(module).__name__}; it must return a torch.nn.Module")
    _check_new(factory, module)
    with foreign_code(failure):
        return _unwrapped(module).train()


def _check_new(factory: str, module: nn.Module) -> None:
    """Refuse parameters that learn and that another module has, too, and tensors without values. Raises ModelError."""
    learning = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    again = [name for name, value in learning if hasattr(value, _GIVEN)]
    if torch.get_default_device().type != "meta":
        again += [name for name, value in (*module.named_parameters(), *module.named_buffers()) if value.is_meta]
    if again:
        raise ModelError(
            f"factory {factory!r} gives {again[0]!r} again, which an earlier call has made (it is in a cache, or a global): "
            "runs of one process would share it; let the factory make anew all that it gives"
        )
    for _, value in learning:
        setattr(value, _GIVEN, True)


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return a module as it was before `torch.compile`, its method `compile()` or `nn.DataParallel`; those inside it stay."""
    while (inside := _WRAPPERS.get(type(module).__name__)) is not None:
        module = module.get_submodule(inside)
    module._compiled_call_impl = None
    return module


def freeze(module: nn.Module, learning: Learning) -> None:
    """Have those parameters of a model not learn that are not to. Raises ModelError for a name that stands for none.

    With `frozen_mode` "eval" a module of whose parameters none learns stays in evaluation, whatever mode is asked for: its
    batch-norms keep their statistics, and its dropout lets everything through.
    """
    parameters = dict(module.named_parameters())
    for name in learning.unchanged(parameters):
        parameters[name].requires_grad_(False)
    if learning.frozen_mode == "eval":
        for part in module.modules():
            if (own := list(part.parameters())) and not any(each.requires_grad for each in own):
                part.train = MethodType(_stay_in_evaluation, part)  # type: ignore[method-assign]
                part.eval()


def _stay_in_evaluation(part: nn.Module, mode: bool = True) -> nn.Module:  # noqa: ARG001 - as nn.Module.train has it
    return type(part).train(part, False) if part.training else part  # a step asks for the mode of each block


def choose_output(module: nn.Module, key: str) -> None:
    """Have a module return one entry of the dictionary, or one place of the tuple, that its forward makes. Its names and state
    stay as they are.

    Called, it raises ModelError where that is neither, or has no such entry.
    """
    kind = type(module)

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Tensor:
        return _chosen(kind.forward(self, *inputs, **named), key, kind.__name__)

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _chosen(outputs: object, key: str, model: str) -> Tensor:
    if isinstance(outputs, tuple | list):
        names = getattr(outputs, "_asdict", dict[str, object])()  # of a named tuple
        outputs = {str(place): each for place, each in enumerate(outputs)} | names
    if not isinstance(outputs, Mapping):
        raise ModelError(
            f"model.output is {key!r}, but {model} returns a {type(outputs).__name__} and neither a dictionary nor a "
            "tuple; leave it out"
        )
    if key not in outputs:
        raise ModelError(f"model.output is {key!r}, but {model} returns {', '.join(map(repr, outputs)) or 'nothing'}")
    chosen: Tensor = outputs[key]
    return chosen


def build_checked_chain(
    factory: str,
    kwargs: Mapping[str, Any],
    seed: int,
    example: Inputs,
    *,
    learning: Learning = ALL_LEARN,
    output: str | None = None,
    allowed: Allowed | None = None,
    inputs_may_cross: bool = False,
    public_inputs: Collection[str] = (),
    length_varies: bool = False,
    limits: BuildLimits | None = None,
    check: Callable[[nn.Module], None] | None = None,
) -> Chain:
    """The model as a verified chain of blocks, of which that learns that is to. Raises ModelError.

    output: the entry to train on, of a model that returns a dictionary. inputs_may_cross, public_inputs, length_varies: see
    `build_chain`. check: may refuse the module before it is run on the example.
    """
    module = build_model(factory, kwargs, seed, allowed=allowed, limits=limits)
    freeze(module, learning)
    if check is not None:
        check(module)

    def failure(cause: BaseException) -> BaseException:
        return cause if isinstance(cause, Exception) else ModelError(f"{factory!r} failed with {described(cause)}")

    with foreign_code(failure):
        if output is not None:
            declared = declared_blocks(module)
            choose_output(module if declared is None else declared[-1][1], output)
        return build_chain(
            module,
            example,
            inputs_may_cross=inputs_may_cross,
            public_inputs=public_inputs,
            length_varies=length_varies,
        )


def check_cut(cut: int, chain: Chain) -> None:
    """Refuse an impossible cut. Raises ModelError.

    A cut of 0 would send raw inputs, and one among the first blocks sends as much if inputs can be read off their
    outputs. At a cut of L nothing crosses.
    """
    check_range(cut, chain)
    first = min(chain.first_boundary, len(chain.blocks))
    if cut < first:
        raise ModelError(
            f"cut {cut} would send raw samples: {chain.why_raw_at(cut)}; cut at {first} or later, or permit it with "
            f"privacy.inputs_to on the edge and server.accept_inputs = true on the trainer{_public_at(cut, chain)}"
        )


def _public_at(cut: int, chain: Chain) -> str:
    """Return the setting that would permit what some named inputs alone have made; empty where these are all or none."""
    names = {name for value in chain.passing_raw(cut) for name in chain.names_of(value)}
    if not names or names == set(chain.input_names):
        return ""
    return (
        f"; where that input tells nothing of a sample, privacy.public_inputs = {json.dumps(sorted(names))} permits it"
    )


def check_range(cut: int, chain: Chain) -> None:
    """Refuse a cut that the model lacks. Raises ModelError."""
    if not 1 <= cut <= len(chain.blocks):
        names = ", ".join(block.name for block in chain.blocks)
        raise ModelError(
            f"cut {cut} is out of range; this model has {len(chain.blocks)} blocks ({names[:200]}), so a cut is 1 to "
            f"{len(chain.blocks)}"
        )


def check_run(first: int, stop: int, chain: Chain) -> None:
    """Refuse blocks [first, stop) that the model has not. Raises ModelError."""
    if not 0 <= first < stop <= len(chain.blocks):
        raise ModelError(
            f"blocks [{first}, {stop}) are out of range; this model has blocks 0 to {len(chain.blocks) - 1}, and a run of them "
            "has one at least"
        )


def parse_kwargs(text: str) -> dict[str, Any]:
    """Keyword arguments from a JSON object, of a bounded size. Raises ModelError."""
    if len(text) > MAX_KWARGS_CHARACTERS:
        raise ModelError(
            f"the model's arguments are {len(text)} characters of JSON; at most {MAX_KWARGS_CHARACTERS} are taken"
        )
    try:
        kwargs = json.loads(text or "{}")
    except (ValueError, RecursionError) as cause:
        raise ModelError(f"the model's arguments are no JSON: {cause}") from cause
    if not isinstance(kwargs, dict):
        raise ModelError(f"the model's arguments must be a JSON object; they are {type(kwargs).__name__}")
    if _depth(kwargs) > MAX_KWARGS_DEPTH:
        raise ModelError(f"the model's arguments are nested more than {MAX_KWARGS_DEPTH} deep")
    return kwargs


def _depth(value: Any) -> int:
    """Count the levels of nesting in objects and lists of JSON, no deeper than the first forbidden level."""
    level, depth = [value], 0
    while level and depth <= MAX_KWARGS_DEPTH:
        inner = [
            list(each.values()) if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
        ]
        level, depth = [each for values in inner for each in values], depth + bool(inner)
    return depth
