"""Spreading the blocks of a group over its trainers by their bytes. Pure."""

from collections.abc import Collection, Mapping, Sequence

from shared.errors import ConfigError


def spread(
    block_bytes: Mapping[int, int], together: Collection[Sequence[int]], workers: Sequence[str]
) -> dict[int, str]:
    """Name the owner of each block: the largest first, each goes to the worker with the fewest bytes.

    together: blocks that use a weight together, which one worker owns. All who call it with the same blocks and as many workers
    divide them in the same way. Raises ConfigError for more workers than there are blocks to be owned.
    """
    tied = {block: tuple(each) for each in together for block in each}
    units = {tied.get(block, (block,)) for block in block_bytes}
    sizes = {unit: sum(block_bytes.get(block, 0) for block in unit) for unit in units}
    if len(units) < len(workers):
        raise ConfigError(
            f"{len(workers)} trainers are configured, and the group's model has {len(units)} blocks that training changes, "
            "each of which lies at one trainer; leave trainers out"
        )
    owned = dict.fromkeys(workers, 0)
    owners: dict[int, str] = {}
    for unit in sorted(units, key=lambda unit: (-sizes[unit], unit)):
        worker = min(workers, key=lambda name: owned[name])
        owned[worker] += max(sizes[unit], 1)
        owners |= {block: worker for block in unit if block in block_bytes}
    return dict(sorted(owners.items()))
