"""The one output that is trained on, of a model that returns several, by name or in a tuple."""

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from shared.errors import ModelError


def choose_output(module: nn.Module, key: str) -> None:
    """Have a module return one entry of the dictionary, or one place of the tuple, that its forward makes. Its names and state
    stay as they are.

    Called, it raises ModelError where that is neither, or has no such entry.
    """
    kind = type(module)

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Tensor:
        return _entry(kind.forward(self, *inputs, **named), key, kind.__name__)

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _entry(outputs: object, key: str, model: str) -> Tensor:
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
