"""The exchange by which all blocks are updated together: the norms of gradients to one worker, and a coefficient back. Pure.

Where samples enter, the next step begins, so an owner there collects the norms: those of others come behind their error
gradients, from link to link, and the coefficient leaves before the next step's feature. So no norm of a device's own gradients
leaves it. Otherwise it is the owner of the first block that learns, whose gradient is the last.

Where the loss is scaled, the worker where samples enter collects them in any case. It knows of every overflow, and with it the
scale of each step, and tells that to all others as the step begins.
"""

from collections import defaultdict
from collections.abc import Sequence

from shared.placement.derived import Crossing, Link
from shared.placement.facts import ModelFacts
from shared.placement.reports import report_parents
from shared.placement.tiles import Cargo, Placement, Rows


def scaling_worker(placement: Placement) -> str:
    """Return the worker that has the scale of the loss."""
    return placement.sources[0].worker


def norm_crossings(placement: Placement, model: ModelFacts, links: Sequence[Link]) -> tuple[Crossing, ...]:
    """List the norms that go to the collecting worker, and the coefficients that come back; none where it owns all that learns,
    or one owner does that needs no other."""
    learning = [index for index, block in enumerate(model.blocks) if block.trainable]
    owned: dict[str, set[int]] = defaultdict(set)
    for index in learning:
        owned[placement.owner(index)].add(index)
    if len(owned) < 2 and not model.scaled:
        return ()
    whole = Rows(0, placement.batch_size)
    if model.scaled:
        root = scaling_worker(placement)
    else:
        root = next((one.worker for one in placement.sources if one.worker in owned), placement.owner(learning[0]))
    parents = report_parents(root, links)
    norms: list[Crossing] = []
    for child, parent in reversed(parents.items()):  # from the furthest, so that each has all that it passes on
        if blocks := owned[child]:
            norms.append(Crossing(child, parent, Cargo.NORMS, 0, whole, tuple(sorted(blocks))))
            owned[parent] |= blocks
    back = (Crossing(one.receiver, one.sender, Cargo.COEFFICIENT, 0, whole) for one in reversed(norms))
    return (*norms, *back)


def scale_crossings(placement: Placement, links: Sequence[Link]) -> tuple[Crossing, ...]:
    """List the ways of a step's scale, to every other worker."""
    whole, parents = Rows(0, placement.batch_size), report_parents(scaling_worker(placement), links)
    return tuple(Crossing(parent, child, Cargo.SCALE, 0, whole) for child, parent in parents.items())
