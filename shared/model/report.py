"""What the blocks of a chain hold and hand on, as plain numbers. How they are shown is for others to say."""

from dataclasses import dataclass

from shared.model.chain import Chain
from shared.model.features import specs_bytes
from shared.model.footprint import OptimizerBytes


@dataclass(frozen=True)
class BlockRow:
    """One block, and what it hands on."""

    block: int
    """Its number in placements, from 0."""
    name: str
    parameters: int
    """How many numbers the block learns, or would if it were not frozen."""
    parameter_bytes: int
    optimizer_bytes: int
    """What the optimizer keeps for them once it has updated them."""
    trainable: bool
    """Whether any parameter takes a gradient."""
    feature_shapes: tuple[tuple[int, ...], ...]
    """What it hands on, tensor by tensor, batch first; the last block hands on the model's output."""
    feature_bytes: int
    """The same in bytes, uncompressed."""


def describe_chain(chain: Chain, optimizer_bytes: OptimizerBytes) -> list[BlockRow]:
    """One row a block, in order. optimizer_bytes: what the optimizer keeps for given parameters."""
    rows = []
    for block, specs in zip(chain.blocks, chain.features[1:], strict=True):
        parameters = block.named_parameters().values()
        rows.append(
            BlockRow(
                block=block.index,
                name=block.name,
                parameters=sum(parameter.numel() for parameter in parameters),
                parameter_bytes=sum(parameter.nbytes for parameter in parameters),
                optimizer_bytes=optimizer_bytes(parameters),
                trainable=block.trainable,
                feature_shapes=tuple(spec.shape for spec in specs),
                feature_bytes=specs_bytes(specs),
            )
        )
    return rows
