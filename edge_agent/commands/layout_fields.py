"""A layout as JSON."""

from shared.planning import FLOAT32_BITS, Layout


def layout_fields(layout: Layout) -> dict[str, object]:
    """Return the fields of a layout. Of two workers and of one: cut, staleness and bits; of a chain: cuts, staleness
    and bits, a list."""
    if len(layout.tiles) > 2:
        return {"cuts": list(layout.cuts), "staleness": layout.staleness, "bits": list(layout.bits)}
    bits = (*layout.bits, FLOAT32_BITS)[0]
    return {"cut": layout.tiles[0].stop, "staleness": layout.staleness, "bits": bits}
