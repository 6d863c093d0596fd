"""A chain of blocks that is cut, in one process: a session of two workers or more, for calibrations and experiments."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from shared.codec import FeedbackMode
from shared.execution.blocks import Method
from shared.execution.in_process_session import InProcessSession
from shared.model.chain import Chain
from shared.placement import Cargo, Placement, Route, Rows, Source, Tile
from shared.training.losses import LossHead
from shared.training.recipe import Recipe

EDGE, TRAINER = "edge", "trainer"


@dataclass(frozen=True)
class Scheme:
    """The way in which batches cross the cut; the fields are those of `[deployment]` in the edge's configuration."""

    staleness: int = 0
    backward: str = "replay"
    feedback: FeedbackMode = FeedbackMode.BATCH
    codec: str = "fp32"
    downlink_codec: str = "fp32"


def split_placement(chain: Chain, cuts: Sequence[int], scheme: Scheme) -> Placement:
    """Blocks [0, cuts[0]) on the edge, those from each cut to the next on a trainer of its own; the last has the loss."""
    whole = Rows(0, chain.features[0][0].shape[0])
    workers = (EDGE, TRAINER, *(f"{TRAINER}{number}" for number in range(2, len(cuts) + 1)))
    bounds = pairwise((0, *cuts, len(chain.blocks)))
    pairs = list(pairwise(workers))
    return Placement(
        version=0,
        blocks=len(chain.blocks),
        batch_size=whole.end,
        workers=workers,
        tiles=tuple(
            Tile(worker, *bound, whole) for worker, bound in zip(workers, bounds, strict=True) if bound[0] < bound[1]
        ),
        sources=(Source(EDGE, whole),),
        staleness=scheme.staleness,
        codecs={Route(near, far, Cargo.FEATURE): scheme.codec for near, far in pairs}
        | {Route(far, near, Cargo.ERROR_GRADIENT): scheme.downlink_codec for near, far in pairs},
    )


def split_session(
    chain: Chain, cuts: Sequence[int], recipe: Recipe, scheme: Scheme, device: torch.device
) -> InProcessSession:
    """Make the session of `split_placement`."""
    placement = split_placement(chain, cuts, scheme)
    method = Method(LossHead(recipe.loss, None), scheme.backward, scheme.feedback)
    return InProcessSession(dict.fromkeys(placement.workers, chain), placement, recipe, method, device)
