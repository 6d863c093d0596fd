"""Facts of a chain of blocks for placements."""

from torch import nn

from shared.model.chain import Block, Chain
from shared.model.spec import CROSSING_DTYPES
from shared.model.values.wiring import Value
from shared.placement import BlockFacts, ModelFacts, ValueFacts

_NORMALISES_OVER_SAMPLES = nn.modules.batchnorm._BatchNorm


def facts_of(
    chain: Chain,
    *,
    clipped_together: bool = False,
    scaled: bool = False,
    precisions: tuple[tuple[str, str], ...] = (),
    merged: bool = False,
    label_tensors: int = 1,
) -> ModelFacts:
    """The chain in numbers and names. The rest: see `ModelFacts`; a group clips by itself."""
    return ModelFacts(
        blocks=tuple(map(_facts_of, chain.blocks)),
        why_raw=chain.why_raw,
        together=chain.together,
        values=tuple(_value_facts(chain, value) for value in chain.values.all),
        features=chain.values.features,
        clipped_together=clipped_together and not merged,
        scaled=scaled,
        precisions=precisions,
        merged=merged,
        label_tensors=label_tensors,
    )


def _value_facts(chain: Chain, value: Value) -> ValueFacts:
    dtype = chain.spec_of(value).dtype
    return ValueFacts(
        value.feature,
        value.readers,
        returns=chain.learns(value),
        raw=value.shows or not chain.has_parameters(value),
        public=chain.values.place_of(value) in chain.values.public,
        inputs=chain.names_of(value),
        unsent_type="" if dtype in CROSSING_DTYPES else str(dtype).removeprefix("torch."),
    )


def _facts_of(block: Block) -> BlockFacts:
    over_samples = any(isinstance(module, _NORMALISES_OVER_SAMPLES) for module in block.module.modules())
    return BlockFacts(
        block.name,
        trainable=block.trainable,
        has_buffers=bool(block.named_buffers() or block.named_transients()),
        min_samples=2 if over_samples else 1,
    )
