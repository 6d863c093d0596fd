"""Fingerprints of blocks: a few numbers of each computation, by which two machines can tell whether they run the same code.

Every block runs on made-up inputs with made-up weights, which are the same on every machine to the last bit; its own
weights may differ until the edge has brought them. Numbers and not digests are compared, within a tolerance: processors
of different kinds round differently, so bits of equal code may differ where an activation or a missing layer changes
every number by far more. Rates of dropout layers are compared directly, because generators of processors differ too.
"""

import math
import zlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from shared.model.features import Features, FeatureSpecs, call_module, flat_numbers
from shared.model.random_state import random_state

Behaviour = tuple[float, ...]
"""The numbers of one block; empty where it cannot run on made-up inputs."""

_SAMPLES = 3
_PROJECTIONS = 7
_PERIOD = 65_521
"""Number of different made-up numbers. A prime, so that the rows of no usual matrix are alike."""
_TOLERANCE = 1e-3
_NARROW_TOLERANCE = 3e-2
"""The tolerance for blocks whose outputs have two bytes an element."""
_UNIT = math.sqrt(3.0)
"""Gives numbers that are spread evenly from -1 to 1 a variance of 1."""


def behaviour_of(
    block: nn.Module, inputs: FeatureSpecs, persistent: frozenset[int], *, draws_random: bool
) -> Behaviour:
    """Run a block on made-up inputs and summarise its output in eval mode, and its buffers after one forward in train mode.

    persistent: ids of the buffers that have made-up values too; the others are part of what the code computes. The caller
    keeps modes and buffers.
    """
    features = made_up_features(inputs, _SAMPLES)
    try:
        with torch.no_grad(), random_state("behaviour"):
            copies = tuple(tensor.clone() for tensor in features)
            outputs = _run_made_up(block, copies, persistent, training=False)[0]
            numbers = _summary(outputs)
            if persistent and not draws_random:
                numbers += _summary(_run_made_up(block, features, persistent, training=True)[1])
    except (
        RuntimeError,
        ValueError,
        IndexError,
        TypeError,
        ArithmeticError,
    ):  # only right numbers will do for this one
        return ()
    rates = [part.p for part in block.modules() if isinstance(part, _DropoutNd)]
    return (max(map(_tolerance, outputs)), *numbers, sum(rate * (place + 1) for place, rate in enumerate(rates)))


def first_difference(ours: Sequence[Behaviour], theirs: Sequence[Behaviour]) -> int | None:
    """The index of the first block that does something else on one side than on the other; None where all do the same."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one and other and (len(one) != len(other) or not _alike(one, other)):
            return index
    return None


def _run_made_up(
    block: nn.Module, features: Features, persistent: frozenset[int], *, training: bool
) -> tuple[Features, list[Tensor]]:
    """The outputs of a block with made-up weights, and its persistent buffers of floats afterwards."""
    block.train(training)
    values = made_up_values(block, persistent)
    statistics = [values[name] for name, buffer in block.named_buffers() if _is_made_up(buffer, persistent)]
    return call_module(block, features, values), statistics


def made_up_values(block: nn.Module, persistent: frozenset[int]) -> dict[str, Tensor]:
    """Made-up parameters and buffers of a block by name. persistent: as for `behaviour_of`."""
    values = {name: _made_up_parameter(name, parameter) for name, parameter in block.named_parameters()}
    for name, buffer in block.named_buffers():
        made = 1.0 + made_up(buffer.numel(), name) / 2 if _is_made_up(buffer, persistent) else buffer.clone()
        values[name] = made.to(buffer.dtype).reshape(buffer.shape)
    return values


def _is_made_up(buffer: Tensor, persistent: frozenset[int]) -> bool:
    return id(buffer) in persistent and buffer.is_floating_point()


def made_up_features(specs: FeatureSpecs, samples: int) -> Features:
    """Features of a kind; integers are 0 and 1, which are valid in every vocabulary."""
    features = []
    for slot, spec in enumerate(specs):
        shape = (samples, *spec.shape[1:])
        numbers = made_up(math.prod(shape), f"input {slot}").reshape(shape)
        features.append((numbers * _UNIT if spec.differentiable else numbers > 0).to(spec.dtype))
    return tuple(features)


def made_up(count: int, name: str) -> Tensor:
    """Numbers from -1 to 1 that follow from `name` by arithmetic of integers, and so are the same everywhere."""
    shift = zlib.crc32(name.encode()) % _PERIOD
    numbers = _cycle().roll(shift)
    return numbers.repeat(-(-count // _PERIOD))[:count] if count > _PERIOD else numbers[:count]


@cache
def _cycle() -> Tensor:
    mixed = torch.arange(1, _PERIOD + 1, dtype=torch.int64) * 2_654_435_761 & 0xFFFFFFFF
    for _ in range(2):
        mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
    mixed = (mixed >> 16) ^ mixed
    return (mixed >> 8).float() / 2**23 - 1.0


def _made_up_parameter(name: str, parameter: Tensor) -> Tensor:
    """Scaled so that the outputs of a layer are about as large as its inputs."""
    inputs = parameter.numel() // max(parameter.shape[0], 1) if parameter.dim() > 1 else 1
    scale = _UNIT / math.sqrt(max(inputs, 1))
    return (made_up(parameter.numel(), name) * scale).to(parameter.dtype).reshape(parameter.shape)


def _summary(tensors: Sequence[Tensor]) -> list[float]:
    """The root mean square of all elements, and their sums with signs of several kinds."""
    if not any(tensor.numel() for tensor in tensors):
        return []
    elements = torch.cat([flat_numbers(tensor).double() for tensor in tensors])
    count = elements.numel()
    signed = [float((elements * made_up(count, f"sign {index}").sign()).sum()) for index in range(_PROJECTIONS)]
    return [float(elements.square().mean().sqrt()), *(each / math.sqrt(count) for each in signed)]


def _tolerance(output: Tensor) -> float:
    return _TOLERANCE if output.dtype.itemsize > 2 or not output.is_floating_point() else _NARROW_TOLERANCE


def _alike(one: Behaviour, other: Behaviour) -> bool:
    tolerance = max(one[0], other[0])
    size = max(1e-6, *(abs(number) for number in one + other if math.isfinite(number)))
    return all(
        math.isclose(a, b, abs_tol=tolerance * size, rel_tol=0.0) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(one[1:], other[1:], strict=True)
    )
