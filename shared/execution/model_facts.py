"""Facts of a chain of blocks for placements."""

from torch import nn

from shared.model.chain import Block, Chain
from shared.model.spec import CROSSING_DTYPES
from shared.placement import BlockFacts, ModelFacts

_NORMALISES_OVER_SAMPLES = nn.modules.batchnorm._BatchNorm


def facts_of(chain: Chain) -> ModelFacts:
    """The chain in numbers and names."""
    return ModelFacts(
        blocks=tuple(map(_facts_of, chain.blocks)),
        why_raw=chain.why_raw,
        together=chain.together,
        integer_features=frozenset(
            index for index, boundary in enumerate(chain.features) if not any(spec.differentiable for spec in boundary)
        ),
        unsent_types={
            index: str(spec.dtype).removeprefix("torch.")
            for index, boundary in enumerate(chain.features)
            for spec in boundary
            if spec.dtype not in CROSSING_DTYPES
        },
    )


def _facts_of(block: Block) -> BlockFacts:
    over_samples = any(isinstance(module, _NORMALISES_OVER_SAMPLES) for module in block.module.modules())
    return BlockFacts(
        block.name,
        trainable=block.trainable,
        has_buffers=bool(block.named_buffers() or block.named_transients()),
        min_samples=2 if over_samples else 1,
    )
