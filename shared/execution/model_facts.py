"""Facts of a chain of blocks for placements."""

from dataclasses import replace

from torch import nn

from shared.execution.block_slices import Slices
from shared.model.chain import Block, Chain
from shared.model.spec import CROSSING_DTYPES
from shared.model.values.wiring import Value
from shared.placement import BlockFacts, ModelFacts, ValueFacts
from shared.training.recipe import Recipe

_NORMALISES_OVER_SAMPLES = nn.modules.batchnorm._BatchNorm


def facts_of(chain: Chain, recipe: Recipe | None = None, *, merged: bool = False) -> ModelFacts:
    """Return the facts of a chain that is trained by a recipe. merged: by a group, which clips by itself."""
    slices = None if recipe is None else Slices(chain, recipe, merged=merged)
    facts = ModelFacts(
        blocks=tuple(_facts_of(block, slices) for block in chain.blocks),
        why_raw=chain.why_raw,
        together=chain.together,
        values=tuple(_value_facts(chain, value) for value in chain.values.all),
        features=chain.values.features,
        merged=merged,
    )
    if recipe is None:
        return facts
    return replace(
        facts,
        clipped_together=recipe.model_clip_norm is not None and not merged,
        scaled=recipe.is_scaled,
        precisions=recipe.precisions,
        label_tensors=recipe.label_tensors,
        counts_labels=recipe.mean == "token",
        samples_ahead=recipe.samples_ahead,
        recalls=recipe.recalls,
        sends_changes=recipe.changes is not None,
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


def _facts_of(block: Block, slices: Slices | None) -> BlockFacts:
    over_samples = any(isinstance(module, _NORMALISES_OVER_SAMPLES) for module in block.module.modules())
    keeps_statistics = any(part.training and [*part.buffers(recurse=False)] for part in block.module.modules())
    return BlockFacts(
        block.name,
        trainable=block.trainable,
        has_buffers=bool(block.named_buffers() or block.named_transients()),
        min_samples=2 if over_samples else 1,
        slices=1 if slices is None else len(slices.of(block.index)),
        steady=not (block.trainable or block.draws_random or keeps_statistics),
    )
