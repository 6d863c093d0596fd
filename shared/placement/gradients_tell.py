"""Leaks of gradients: a block's gradient tells its receiver of the samples behind it, the last block's of the labels. Pure.

The gradient of an embedding shows which tokens a batch had, that of a linear layer is made of its inputs, and that of the last
block says which outputs should have been larger. Weights after an update tell as much, because the weights before are known.
An error gradient tells labels where the blocks behind it are known.
"""

from shared.placement.derived import Crossing, gradient_crossings, weight_crossings
from shared.placement.facts import ModelFacts
from shared.placement.tiles import Placement


def tells_inputs(one: Crossing, placement: Placement, model: ModelFacts) -> bool:
    """Tell whether a block's gradient or new weights reveal raw samples of another worker to the receiver."""
    return one.index < model.raw_features and _of_others(one, placement)


def tells_labels(one: Crossing, placement: Placement) -> bool:
    """Tell whether a block's gradient or new weights reveal labels of another worker to the receiver."""
    return one.index == placement.blocks - 1 and _of_others(one, placement)


def told_by_gradients(placement: Placement, model: ModelFacts, worker: str) -> tuple[str, ...]:
    """List the data that all gradients and new weights could reveal to a worker: inputs, labels, both or neither."""
    weights = [one for one in weight_crossings(placement, model) if one.receiver == worker]
    errors = [one for one in gradient_crossings(placement, model) if one.receiver == worker]
    told = {
        "inputs": any(tells_inputs(one, placement, model) for one in weights),
        "labels": any(tells_labels(one, placement) for one in weights)
        or any(_of_others(one, placement) for one in errors),
    }
    return tuple(what for what, is_told in told.items() if is_told)


def _of_others(one: Crossing, placement: Placement) -> bool:
    """Tell whether any sample of the batch is another worker's than the receiver's."""
    return any(source.worker != one.receiver for source in placement.sources)
