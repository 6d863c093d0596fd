"""Leaks of gradients: a block's gradient tells its receiver of the samples behind it, the last block's of the labels. Pure.

The gradient of an embedding shows which tokens a batch had, that of a linear layer is made of its inputs, and that of the last
block says which outputs should have been larger. Weights after an update tell as much, because the weights before are known.
The weights of successive checkpoints tell as much, because their difference is a sum of gradients, of which the state of an
optimizer holds the newest. An error gradient tells labels where the blocks behind it are known.
"""

from collections.abc import Collection

from shared.bounds import AGENT
from shared.placement.derived import Crossing, gradient_crossings, weight_crossings
from shared.placement.facts import ModelFacts, Permissions
from shared.placement.tiles import Placement


def tells_inputs(one: Crossing, placement: Placement, model: ModelFacts) -> bool:
    """Tell whether a block's gradient or new weights reveal raw samples of another worker to the receiver."""
    return model.computes_on_raw(one.index) and _of_others(one.receiver, placement)


def tells_labels(one: Crossing, placement: Placement) -> bool:
    """Tell whether a block's gradient or new weights reveal labels of another worker to the receiver."""
    return one.index == placement.blocks - 1 and _of_others(one.receiver, placement)


def may_keep(block: int, worker: str, model: ModelFacts, permissions: Permissions) -> bool:
    """Tell whether a worker may keep replicas of a block. The agent has all samples and labels."""
    if worker == AGENT or worker in permissions.gradients_to:
        return True
    tells_samples = model.computes_on_raw(block) and worker not in permissions.inputs_to
    is_last, labels_to = block == len(model.blocks) - 1, permissions.labels_to
    return not tells_samples and not (is_last and labels_to is not None and worker not in labels_to)


def told_by_gradients(
    placement: Placement, model: ModelFacts, worker: str, kept: Collection[int] = ()
) -> tuple[str, ...]:
    """List the data that all gradients and new weights could reveal to a worker: inputs, labels, both or neither.

    kept: the blocks of which it keeps replicas.
    """
    weights = [one for one in weight_crossings(placement, model) if one.receiver == worker]
    errors = [one for one in gradient_crossings(placement, model) if one.receiver == worker]
    of_others = _of_others(worker, placement)
    told = {
        "inputs": any(tells_inputs(one, placement, model) for one in weights)
        or (of_others and any(map(model.computes_on_raw, kept))),
        "labels": any(tells_labels(one, placement) for one in weights)
        or (of_others and (bool(errors) or placement.blocks - 1 in kept)),
    }
    return tuple(what for what, is_told in told.items() if is_told)


def _of_others(worker: str, placement: Placement) -> bool:
    """Tell whether any sample of the batch is another worker's."""
    return any(source.worker != worker for source in placement.sources)
