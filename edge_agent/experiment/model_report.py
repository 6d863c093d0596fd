"""Contents and output of each block of a chain as plain numbers, and the reasons why blocks are no smaller.

For each two layers in one block it names the obstacle to a cut. The callers choose how to show all this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from shared.model.chain import Chain
from shared.model.division.declared import declared_blocks
from shared.model.division.seams import Seam, find_seams
from shared.model.division.segmentation import find_pieces
from shared.model.footprint import OptimizerBytes
from shared.model.snapshot import unchanged
from shared.model.tracing import trace


@dataclass(frozen=True)
class SlotRow:
    """One tensor that crosses behind a block."""

    shape: tuple[int, ...]
    """Batch first."""
    dtype: str
    bytes: int
    """Bytes of the elements, uncompressed."""
    made_by: str
    """The number of the block that has made it, as `block 3`; or `input`, with its name or place where there are several."""
    raw: bool
    """True if it counts as raw samples, so that a worker may have it by permission alone."""


@dataclass(frozen=True)
class BlockRow:
    """One block, and its outputs."""

    block: int
    """Its number in placements, from 0."""
    name: str
    parameters: int
    """Count of the block's parameters, frozen ones included."""
    parameter_bytes: int
    optimizer_bytes: int
    """Bytes that the optimizer keeps for the parameters once it has updated them."""
    trainable: bool
    """True if any parameter takes a gradient."""
    slots: tuple[SlotRow, ...]
    """The tensors that it hands on, made here or before; the last block hands on the model's outputs."""


def describe_chain(chain: Chain, optimizer_bytes: OptimizerBytes) -> list[BlockRow]:
    """Describe the blocks, one row each, in order. optimizer_bytes: bytes of the optimizer for given parameters."""
    rows = []
    for block in chain.blocks:
        parameters = block.named_parameters().values()
        rows.append(
            BlockRow(
                block=block.index,
                name=block.name,
                parameters=sum(parameter.numel() for parameter in parameters),
                parameter_bytes=sum(parameter.nbytes for parameter in parameters),
                optimizer_bytes=optimizer_bytes(parameters),
                trainable=block.trainable,
                slots=tuple(
                    _slot(chain, block.index + 1, slot) for slot in range(len(chain.features[block.index + 1]))
                ),
            )
        )
    return rows


def _slot(chain: Chain, feature: int, slot: int) -> SlotRow:
    spec, value = chain.features[feature][slot], chain.value(feature, slot)
    made_by = f"block {value.feature - 1}" if value.feature else "input"
    if not value.feature and len(chain.features[0]) > 1:
        made_by += f" {chain.input_names[value.slot] if chain.input_names else value.slot}"
    dtype = str(spec.dtype).removeprefix("torch.")
    return SlotRow(spec.shape, dtype, spec.bytes, made_by, raw=chain.is_raw(value))


def explain(chain: Chain) -> list[Seam]:
    """List every two consecutive layers with weights in one block, with the obstacle to a cut between them."""
    module = chain.module
    declared = declared_blocks(module)
    if declared is not None:
        seams = [seam for _, block in declared for seam in _inside(block, module)]
        names = [name for name, _ in declared]
    else:
        with unchanged(module):
            traced = trace(module, tuple(spec.example() for spec in chain.features[0]), chain.input_names)
        seams = find_seams(traced)
        names = [piece.name for piece in find_pieces(traced)]
    return [*seams, *_joined(names, {block.name for block in chain.blocks})]


def _inside(block: nn.Module, module: nn.Module) -> list[Seam]:
    """The layers of a block that the module itself says is one."""
    qualified = {part: name for name, part in module.named_modules()}
    layers = [
        qualified.get(part, type(part).__name__)
        for part in block.modules()
        if any(parameter.dim() > 1 for parameter in part.parameters(recurse=False))
    ]
    kind = type(module).__name__
    if callable(getattr(module, "blocks", None)):
        reason = f"{kind}.blocks() says that they are one block"
    else:
        reason = f"they are in one child of the {kind}, and each child is a block; make them children of their own"
    return [Seam(before, after, reason) for before, after in pairwise(layers)]


def _joined(names: Sequence[str], kept: set[str]) -> list[Seam]:
    """List the pieces that became one block because of the tensors between them."""
    reason = (
        "what passes between them does not have the batch as its first dimension; use batch_first=True, or keep the batch in "
        "front"
    )
    return [Seam(before, after, reason) for before, after in pairwise(names) if after not in kept]
