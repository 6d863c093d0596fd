"""The shape and element type of a tensor, without its values, and examples made from that.

Knows shapes, element types and bytes, but not the meaning of the tensor.
"""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.errors import ModelError
from shared.model.random_state import derive_seed

_ANY_VOCABULARY = 2
"""Bound of integer examples where none is given: 0 and 1 are valid in every vocabulary and every label set."""

_NUMBERS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*_NUMBERS, torch.bool)}
CROSSING_DTYPES = frozenset({*_NUMBERS, torch.bool})
"""Element types of tensors that pass between workers: the contract has a name for each of these."""
_EXAMPLE = re.compile(r"(?P<shape>[1-9]\d*(x[1-9]\d*)*)(:(?P<dtype>[a-z]+\d*)(<(?P<high>[1-9]\d*))?)?", re.ASCII)


@dataclass(frozen=True)
class TensorSpec:
    """Shape (batch first) and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the elements, uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def differentiable(self) -> bool:
        """Tell whether the tensor can have an error gradient: integers have none."""
        return is_differentiable(self.dtype)

    def zeros(self, batch_size: int) -> Tensor:
        """A CPU tensor of zeros of this kind, for so many samples."""
        return torch.zeros((batch_size, *self.shape[1:]), dtype=self.dtype)

    def example(self, batch_size: int | None = None, *, high: int = _ANY_VOCABULARY) -> Tensor:
        """A random CPU tensor of this kind, the same at every call: normal floats, or integers in [0, high).

        batch_size: replaces the first dimension; None keeps it.
        """
        shape = self.shape if batch_size is None else (batch_size, *self.shape[1:])
        generator = torch.Generator().manual_seed(derive_seed("example", str(self.dtype), *shape))
        if self.differentiable:
            return torch.randn(shape, generator=generator).to(self.dtype)
        return torch.randint(high, shape, generator=generator, dtype=self.dtype)


def is_differentiable(dtype: torch.dtype) -> bool:
    """Tell whether numbers of a type are real or complex, and so have gradients."""
    return dtype.is_floating_point or dtype.is_complex


def parse_examples(text: str) -> Tensor | dict[str, Tensor]:
    """The example inputs that a command line names: one, as `32x3x32x32`, or by name, as `ids=8x64:int64<1000,mask=8x64:bool`.

    Raises ModelError when the text is none of these.
    """
    if "=" not in text:
        return parse_example(text)
    found: dict[str, Tensor] = {}
    for part in text.split(","):
        name, _, shape = part.partition("=")
        if not name.isidentifier() or name in found:
            raise ModelError(
                f"{text!r} are no example inputs; write each with the name of a parameter of forward(), once, as "
                "ids=8x64:int64<1000,mask=8x64:bool"
            )
        found[name] = parse_example(shape)
    return found


def parse_example(text: str) -> Tensor:
    """One of them: `32x3x32x32`, `8x16:float64`, `8x64:int64<1000` or `8x64:bool`.

    The shape includes the batch; without a type it is float32; `<N` bounds integers to [0, N), for embeddings.
    Raises ModelError when the text is none of these.
    """
    match = _EXAMPLE.fullmatch(text)
    if match is None:
        raise ModelError(
            f"{text!r} is no example input; write its shape with the batch, as 32x3x32x32 or 8x64:int64<1000"
        )
    dtype = _DTYPES.get(match["dtype"] or "float32")
    if dtype is None:
        raise ModelError(f"example input {text!r}: {match['dtype']!r} is not one of the types {', '.join(_DTYPES)}")
    high = int(match["high"] or _ANY_VOCABULARY)
    if match["high"] and (dtype.is_floating_point or dtype is torch.bool):
        raise ModelError(f"example input {text!r}: only integers are bounded with <; leave out <{high}")
    if not (dtype.is_floating_point or dtype is torch.bool) and high - 1 > torch.iinfo(dtype).max:
        raise ModelError(f"example input {text!r}: {match['dtype']} holds at most {torch.iinfo(dtype).max}")
    spec = TensorSpec(tuple(int(size) for size in match["shape"].split("x")), dtype)
    try:
        return spec.example(high=high)
    except RuntimeError as cause:  # torch's word for out of memory, or for more than can be counted
        raise ModelError(f"example input {text!r}: {spec.bytes:,} bytes do not fit into memory") from cause
