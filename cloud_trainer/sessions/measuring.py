"""How long one step of the cloud's blocks takes, measured on made-up features for `edge-agent profile`."""

from collections.abc import Callable

from shared.errors import ProtocolError
from shared.execution.failures import translate_failures
from shared.model.build import check_range
from shared.training.held_blocks import HeldBlocks
from shared.training.measure import seconds_of, stage_step
from shared.training.stage import lone_stage

_MAX_REPEATS = 1000


def measured_step(held: HeldBlocks, cut: int, repeats: int) -> Callable[[], float]:
    """What does one step of blocks [cut, L), which changes their weights, and returns its seconds.

    repeats: how often it is to be called. Raises ModelError for a cut out of range, ProtocolError for too many repeats.
    """
    chain, device = held.chain, held.device
    check_range(cut, chain)  # made-up features cross it, so it may be any
    if not 1 <= repeats <= _MAX_REPEATS:
        raise ProtocolError(f"{repeats} repeats were asked for; 1 to {_MAX_REPEATS} can be")
    stage = lone_stage(chain, cut, len(chain.blocks), held.recipe, device)
    step = stage_step(stage, chain.features[cut], input_gradient=chain.gradients_return(cut))

    def measured() -> float:
        with translate_failures("measuring the cloud's blocks", device):
            return seconds_of(step)

    return measured
