"""Blocks that are exact under some placements alone: what binds them, and the refusal of the others."""

from typing import NamedTuple

from shared.errors import ConfigError, ModelError
from shared.model.chain import Chain
from shared.placement import Placement
from shared.training.recipe import Recipe


class Bound(NamedTuple):
    """Blocks that not every placement suits."""

    rewriting: tuple[int, ...] = ()
    """Blocks whose forward changes their own parameters, which a second forward, or one over copies, must not do."""
    sparse: tuple[int, ...] = ()
    """Blocks with sparse gradients, of which no sum is taken."""
    hooked: tuple[int, ...] = ()
    """Blocks with hooks on parameters, which must see the gradient of all samples."""
    whole_loss: bool = False
    """True if the loss is not the mean of those of parts of a batch."""

    def check(self, placement: Placement, chain: Chain, *, in_group: bool) -> None:
        """Refuse a placement that does not suit them. Raises ConfigError."""
        if self.rewriting and placement.staleness:
            raise ConfigError(
                f"placement: block {chain.blocks[self.rewriting[0]].name!r} changes its own parameters in its forward, which "
                f"is exact only with a staleness of 0, and that is {placement.staleness}; set deployment.staleness = 0"
            )
        whys = {"changes its own parameters in its forward": self.rewriting}
        whys |= {"has sparse gradients": self.sparse, "has hooks on its parameters": self.hooked}
        for why, indices in whys.items():
            for index in indices:
                if in_group or len(placement.holders(index)) > 1:
                    raise ConfigError(
                        f"placement: block {chain.blocks[index].name!r} {why}, and several workers would have parts of its "
                        "samples; let one have them all"
                    )


def hooked_blocks(chain: Chain, recipe: Recipe) -> tuple[int, ...]:
    """List the blocks with hooks on parameters. Raises ModelError for hooks that would see another gradient than in a loop."""
    found = set[int]()
    tied = {id(each.entry.value) for block in chain.blocks for each in block.state.tied}
    for block in chain.blocks:
        for name, value in block.named_parameters().items():
            after = value._post_accumulate_grad_hooks
            if after and recipe.accumulate_batches > 1:
                raise ModelError(
                    f"parameter {name!r} has a post-accumulate-grad hook, which with training.accumulate_batches would get the "
                    "gradient of one batch and not the sum so far; use register_hook()"
                )
            if not (after or value._backward_hooks):
                continue
            if id(value) in tied:
                raise ModelError(
                    f"parameter {name!r} has a hook and is tied, so the hook would get the gradient of one use and not that of "
                    "all; put the hook on the output of the layers"
                )
            found.add(block.index)
    return tuple(sorted(found))
