"""What a chain's cuts would cost, as plain numbers. How they are shown is for others to say."""

from dataclasses import dataclass

from shared.model.chain import Chain
from shared.model.features import specs_bytes
from shared.model.footprint import OptimizerBytes


@dataclass(frozen=True)
class CutRow:
    """One block, and the cut after it."""

    cut: int
    """The cut that has this block as the edge's last."""
    name: str
    parameters: int
    """How many numbers the block learns, or would if it were not frozen."""
    parameter_bytes: int
    optimizer_bytes: int
    """What the optimizer keeps for them once it has updated them."""
    trainable: bool
    """Whether any parameter takes a gradient."""
    feature_shapes: tuple[tuple[int, ...], ...]
    """What crosses the cut forward, tensor by tensor, batch first; after the last block, the model's output."""
    feature_bytes: int
    """The same in bytes, uncompressed."""


def describe_chain(chain: Chain, optimizer_bytes: OptimizerBytes) -> list[CutRow]:
    """One row a block, in order. optimizer_bytes: what the optimizer keeps for given parameters."""
    rows = []
    for block, specs in zip(chain.blocks, chain.features[1:], strict=True):
        parameters = block.named_parameters().values()
        rows.append(
            CutRow(
                cut=block.index + 1,
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
