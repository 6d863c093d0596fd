"""Both sides of a cut in one process: the simulation of two workers, as calibrations and experiments use it."""

from dataclasses import dataclass, replace

import torch

from shared.codec import FeedbackMode
from shared.execution.blocks import Method
from shared.execution.simulation import Simulation
from shared.model.chain import Chain
from shared.placement import Cargo, Route, two_workers
from shared.training.losses import LossHead
from shared.training.recipe import Recipe

EDGE, TRAINER = "edge", "trainer"


@dataclass(frozen=True)
class Scheme:
    """How batches cross the cut; the fields are those of `[deployment]` in the edge's configuration."""

    staleness: int = 0
    backward: str = "replay"
    feedback: FeedbackMode = FeedbackMode.BATCH
    codec: str = "fp32"
    downlink_codec: str = "fp32"


def split_simulation(chain: Chain, cut: int, recipe: Recipe, scheme: Scheme, device: torch.device) -> Simulation:
    """Blocks [0, cut) on the edge, the others and the loss on the trainer."""
    batch_size = chain.features[0][0].shape[0]
    placement = two_workers(EDGE, TRAINER, cut, len(chain.blocks), batch_size, staleness=scheme.staleness)
    codecs = {
        Route(EDGE, TRAINER, Cargo.FEATURE): scheme.codec,
        Route(TRAINER, EDGE, Cargo.ERROR_GRADIENT): scheme.downlink_codec,
    }
    method = Method(LossHead(recipe.loss, None), scheme.backward, scheme.feedback)
    chains = dict.fromkeys((EDGE, TRAINER), chain)
    return Simulation(chains, replace(placement, codecs=codecs), recipe, method, device)
