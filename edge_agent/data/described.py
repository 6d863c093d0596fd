"""Words for what a dataset gives, for the sentences of refusals."""

from typing import Any

from torch import Tensor

from shared.model.inputs import Inputs, names_of_inputs
from shared.model.spec import TensorSpec


def keys_of(inputs: Inputs) -> tuple[str, ...]:
    """Return the names of the parts of an input: its keys, or its places; none where it is one tensor."""
    if isinstance(inputs, Tensor):
        return ()
    return names_of_inputs(inputs) or tuple(map(str, range(len(inputs))))


def kind_of(value: Any) -> str:
    """Return the type of a value, with its length where that counts."""
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"of type {type(value).__name__}{length}"


def layout_of(tensor: Tensor | TensorSpec) -> str:
    """Return the type and the shape of a tensor, or of one of this kind."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
