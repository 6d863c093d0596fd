"""A default cut that leaves a worker almost no part of the model: reported once, at the beginning of a run."""

import structlog

from edge_agent.experiment.experiment import Experiment
from shared.placement import held_blocks

_log = structlog.get_logger(__name__)

LEAST_SHARE = 0.01
"""Part of the parameters, and of the computing, below which a worker is not worth its link."""


def warn_of_small_share(experiment: Experiment) -> None:
    """Warn where the cut was left open and a worker has less than `LEAST_SHARE` of the parameters and of the computing."""
    config, chain = experiment.config, experiment.chain
    if config.deployment.cut is not None or config.placement.given or not config.all_trainers:
        return
    parameters = [float(sum(value.numel() for value in block.named_parameters().values())) for block in chain.blocks]
    edge, *_ = workers = experiment.placement.workers
    for worker in workers:
        held = held_blocks(experiment.placement, worker)
        if _is_small(parameters, held) and _is_small(experiment.block_operations(), held):
            _log.warning(
                "deployment.cut is left out, and the cut in the middle leaves a worker less than a hundredth of the model; "
                "edge-agent model --explain says why the blocks are no smaller, and deployment.cut or blocks() cuts elsewhere",
                worker=worker,
                parameters=int(sum(parameters[block] for block in held)),
                of=int(sum(parameters)),
                cut=len(held_blocks(experiment.placement, edge)),
                blocks=len(chain.blocks),
            )


def _is_small(amounts: list[float], held: tuple[int, ...]) -> bool:
    """Tell whether these blocks have next to nothing of the whole, or all blocks have nothing."""
    return sum(amounts[block] for block in held) <= LEAST_SHARE * sum(amounts)
