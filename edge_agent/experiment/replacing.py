"""A placement without the trainers that a run goes on without: the heirs of their blocks. It contacts no trainer."""

from collections.abc import Callable, Collection, Mapping, Sequence

from edge_agent.experiment.experiment import Experiment
from shared.errors import ConfigError, DataError
from shared.placement import AGENT, Placement, hand_over, held_blocks, reassign_worker


def plan_without(
    experiment: Experiment,
    placement: Placement,
    left_out: Sequence[str],
    kept: Mapping[str, Collection[int]],
    barred: Callable[[Placement], str] = lambda _placement: "",
) -> Placement:
    """Return the placement in which others have the blocks of these trainers; the same one if they had none.

    kept: by remaining worker, the blocks of which it keeps replicas. The keeper of the needed ones comes first, then
    the other trainers from the nearest on, those that the placement does not name, and last this device, alone only
    where engine.allow_edge_only permits.
    Raises the
    ConfigError or DataError of the last one that was tried, if no worker may and can have the blocks.

    barred: another obstacle to a placement, as a sentence; empty for none.
    """
    for worker in left_out:
        if held_blocks(placement, worker):
            placement = _plan_without(experiment, placement, worker, left_out, kept, barred)
    return placement


def _plan_without(
    experiment: Experiment,
    placement: Placement,
    worker: str,
    left_out: Sequence[str],
    kept: Mapping[str, Collection[int]],
    barred: Callable[[Placement], str],
) -> Placement:
    blocks = set(held_blocks(placement, worker))
    trainers = [name for name in dict.fromkeys([*placement.workers, *kept]) if name not in (AGENT, *left_out)]
    trainers = [name for name in trainers if name in kept]
    ranked = sorted(trainers, key=lambda name: len(blocks.intersection(kept.get(name, ()))), reverse=True)
    refusal: ConfigError | DataError = ConfigError(f"nobody is left who could run what {worker!r} ran")
    for successor in (*ranked, AGENT):
        try:
            take_over = reassign_worker if successor in placement.workers else hand_over
            placed = experiment.completed(take_over(placement, worker, successor))
        except (ConfigError, DataError) as impossible:
            refusal = impossible
            continue
        if reason := barred(placed):
            refusal = ConfigError(reason)
            continue
        if experiment.config.engine.allow_edge_only or {tile.worker for tile in placed.tiles} != {AGENT}:
            return placed
        refusal = ConfigError(
            f"only this device is left to run what {worker!r} ran, and engine.allow_edge_only is false"
        )
    raise refusal
