"""A placement without the trainers that a run goes on without: who gets their blocks. It contacts nobody."""

from collections.abc import Collection, Mapping, Sequence

from edge_agent.experiment.building import Experiment
from shared.errors import ConfigError, DataError
from shared.placement import AGENT, Placement, given_over, held_blocks


def planned_around(
    experiment: Experiment,
    placement: Placement,
    left_out: Sequence[str],
    kept: Mapping[str, Collection[int]],
) -> Placement:
    """The placement in which others have what these trainers had; the same one where they had nothing.

    kept: the blocks of which each worker keeps replicas. Who keeps those that are needed comes first, then the other trainers
    from the nearest on, and last this device, alone only where engine.allow_edge_only permits. Raises the ConfigError or
    DataError of the last one that was tried, where nobody may or can have the blocks.
    """
    for worker in left_out:
        if held_blocks(placement, worker):
            placement = _planned_around(experiment, placement, worker, left_out, kept)
    return placement


def _planned_around(
    experiment: Experiment,
    placement: Placement,
    worker: str,
    left_out: Sequence[str],
    kept: Mapping[str, Collection[int]],
) -> Placement:
    blocks = set(held_blocks(placement, worker))
    trainers = [name for name in placement.workers if name not in (AGENT, *left_out)]
    ranked = sorted(trainers, key=lambda name: len(blocks.intersection(kept.get(name, ()))), reverse=True)
    refusal: ConfigError | DataError = ConfigError(f"nobody is left who could run what {worker!r} ran")
    for successor in (*ranked, AGENT):
        try:
            placed = experiment.completed(given_over(placement, worker, successor))
        except (ConfigError, DataError) as impossible:
            refusal = impossible
            continue
        if experiment.config.engine.allow_edge_only or {tile.worker for tile in placed.tiles} != {AGENT}:
            return placed
        refusal = ConfigError(
            f"only this device is left to run what {worker!r} ran, and engine.allow_edge_only is false"
        )
    raise refusal
