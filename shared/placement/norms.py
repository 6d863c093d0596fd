"""The exchange by which all blocks are clipped by one norm: the norms of gradients to one owner, and a coefficient back. Pure.

Where samples enter, the next step begins, so an owner there collects the norms: those of others come behind their error
gradients, from link to link, and the coefficient leaves before the next step's feature. So no norm of a device's own gradients
leaves it. Otherwise it is the owner of the first block that learns, whose gradient is the last.
"""

from collections import defaultdict
from collections.abc import Sequence

from shared.placement.derived import Crossing, Link
from shared.placement.facts import ModelFacts
from shared.placement.reports import report_parents
from shared.placement.tiles import Cargo, Placement, Rows


def norm_crossings(placement: Placement, model: ModelFacts, links: Sequence[Link]) -> tuple[Crossing, ...]:
    """List the norms that go to the collecting owner, and the coefficients that come back; none where one worker owns all
    that learns."""
    learning = [index for index, block in enumerate(model.blocks) if block.trainable]
    owned: dict[str, set[int]] = defaultdict(set)
    for index in learning:
        owned[placement.owner(index)].add(index)
    if len(owned) < 2:
        return ()
    whole = Rows(0, placement.batch_size)
    root = next((one.worker for one in placement.sources if one.worker in owned), placement.owner(learning[0]))
    parents = report_parents(root, links)
    norms: list[Crossing] = []
    for child, parent in reversed(parents.items()):  # from the furthest, so that each has all that it passes on
        if blocks := owned[child]:
            norms.append(Crossing(child, parent, Cargo.NORMS, 0, whole, tuple(sorted(blocks))))
            owned[parent] |= blocks
    back = (Crossing(one.receiver, one.sender, Cargo.COEFFICIENT, 0, whole) for one in reversed(norms))
    return (*norms, *back)
