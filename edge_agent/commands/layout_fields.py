"""A layout as JSON."""

from collections.abc import Sequence

from shared.planning import FLOAT32_BITS, Layout


def layout_fields(layout: Layout, names: Sequence[str]) -> dict[str, object]:
    """Return the fields of a layout. names: of all workers that may have blocks.

    Of two workers: cut, staleness and bits. Of a chain: those that have blocks, cuts, staleness and bits, which are lists.
    """
    if len(names) > 2:
        return {
            "workers": list(layout.workers),
            "cuts": list(layout.cuts),
            "staleness": layout.staleness,
            "bits": list(layout.bits),
        }
    bits = (*layout.bits, FLOAT32_BITS)[0]
    return {"cut": layout.tiles[0].stop, "staleness": layout.staleness, "bits": bits}
