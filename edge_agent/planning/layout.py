"""Layouts: the objects of planning. A layout is a placement without its version and codecs' names, and hashable.

It says which worker runs which blocks on which samples, the owners of shared blocks, K, and the bits of features. Every
family makes layouts, every cost is of layouts, and the engine weighs them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.profile import Profile
from shared.placement import Cargo, Placement, Route, Rows, Source, Tile, crossings, unnamed_blocks


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. Two that are equal train alike."""

    tiles: tuple[Tile, ...]
    """Tiles by their first block, and then by their first sample."""
    staleness: int = 0
    """K: step t computes on weights of version t - K or newer."""
    widths: tuple[tuple[Route, int], ...] = ()
    """Bits of the features on each route that has fewer than 32, in the order of the tiles that send."""
    owners: tuple[tuple[int, str], ...] = ()
    """Owners of shared blocks, by block. Other blocks belong to their holders."""
    source: str = ""
    """Worker that has the samples, if it is not that of the first tile."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Return the workers that have something to do, nearest to the samples first."""
        source = (self.source,) if self.source else ()
        return tuple(dict.fromkeys((*source, *(tile.worker for tile in self.tiles), *dict(self.owners).values())))

    @property
    def is_stacked(self) -> bool:
        """Tell whether each of its workers runs the next blocks on the whole batch, the first one where the samples are."""
        return not self.owners and not self.source and len(self.workers) == len(self.tiles)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Return the blocks before each tile but the first: of stacked tiles, the cuts."""
        return tuple(tile.first for tile in self.tiles[1:])

    @property
    def bits(self) -> tuple[int, ...]:
        """Return the bits of the features between each two neighbouring tiles."""
        return tuple(self.width(near.worker, far.worker) for near, far in pairwise(self.tiles))

    def partners(self, worker: str) -> tuple[str, ...]:
        """Return the workers with which one exchanges features, in their order."""
        routes = feature_routes(self.placement())
        met = {name for one in routes if worker in (one.sender, one.receiver) for name in (one.sender, one.receiver)}
        return tuple(name for name in self.workers if name in met - {worker})

    def pinned(self, bits: int | None, staleness: int | None) -> "Layout":
        """Return the same with these bits of all features and this K, each that is given."""
        wide = self.widths
        if bits is not None:
            wide = sorted_widths(self.tiles, dict.fromkeys(feature_routes(self.placement()), bits))
        return replace(self, widths=wide, staleness=self.staleness if staleness is None else staleness)

    def width(self, sender: str, receiver: str) -> int:
        """Return the bits of the features from one worker to another."""
        return dict(self.widths).get(Route(sender, receiver, Cargo.FEATURE), FLOAT32_BITS)

    def placement(self, workers: Sequence[str] = ()) -> Placement:
        """Return the same as a placement of version 0 without codecs. workers: others of the session, without work."""
        whole = Rows(0, max(tile.rows.end for tile in self.tiles))
        return Placement(
            version=0,
            blocks=max(tile.stop for tile in self.tiles),
            batch_size=whole.end,
            workers=tuple(dict.fromkeys([*self.workers, *workers])),
            tiles=self.tiles,
            sources=(Source(self.source or self.tiles[0].worker, whole),),
            owners=dict(self.owners),
            staleness=self.staleness,
        )

    def __str__(self) -> str:
        if len(self.tiles) == 1:
            return f"all blocks on {self.tiles[0].worker}, staleness {self.staleness}"
        cuts, bits = self.cuts, self.bits
        if not self.is_stacked:
            where = ", ".join(f"{tile.worker} [{tile.first}, {tile.stop}) on {tile.rows}" for tile in self.tiles)
            return f"{where}, staleness {self.staleness}"
        named = f"cut{'s' * (len(cuts) > 1)} {', '.join(map(str, cuts))}"
        return f"{named}, staleness {self.staleness}, {', '.join(map(str, bits))} bits"


def stacked(
    profile: Profile, cuts: Sequence[int], staleness: int, bits: Sequence[int], workers: Sequence[str] | None = None
) -> Layout:
    """Build a layout of workers that each run the next blocks on the whole batch.

    cuts: the blocks before each worker but the first; one that is L leaves the rest without blocks. bits: of the
    features before each of them. workers: of the profile; all if left out.
    """
    names, blocks = workers or profile.names, len(profile)
    whole = Rows(0, profile.batch_size)
    ends = zip(names, (0, *cuts), (*cuts, blocks), strict=True)
    tiles = tuple(Tile(name, first, stop, whole) for name, first, stop in ends if first < stop)
    widths = tuple(
        (Route(near.worker, far.worker, Cargo.FEATURE), width)
        for (near, far), width in zip(pairwise(tiles), bits, strict=False)
        if width < FLOAT32_BITS
    )
    return Layout(tiles, staleness, widths)


def layout_of(placement: Placement, bits_of: Callable[[str], int]) -> Layout:
    """Return the layout of a placement. bits_of: the width of a codec."""
    tiles = tuple(sorted(placement.tiles, key=lambda tile: (tile.first, tile.rows.begin)))
    named = {route: bits_of(name) for route, name in placement.codecs.items()}
    widths = sorted_widths(tiles, {route: named[route] for route in feature_routes(placement) if route in named})
    source = placement.sources[0].worker
    return Layout(
        tiles,
        placement.staleness,
        widths,
        tuple(sorted(placement.owners.items())),
        "" if source == tiles[0].worker else source,
    )


def feature_routes(placement: Placement) -> list[Route]:
    """List the routes on which features travel, in the order of the tiles that send."""
    forward = (one for one in crossings(placement, unnamed_blocks(placement.blocks)) if one.cargo is Cargo.FEATURE)
    routes = {Route(one.sender, one.receiver, one.cargo) for one in forward}
    return sorted(routes, key=_order_of(placement.tiles))


def sorted_widths(tiles: Sequence[Tile], widths: Mapping[Route, int]) -> tuple[tuple[Route, int], ...]:
    """Return the bits of those routes that have fewer than 32, in the order of the tiles that send."""
    narrow = [route for route, bits in widths.items() if bits < FLOAT32_BITS]
    return tuple((route, widths[route]) for route in sorted(narrow, key=_order_of(tiles)))


def _order_of(tiles: Sequence[Tile]) -> Callable[[Route], tuple[int, int]]:
    order = {worker: index for index, worker in enumerate(dict.fromkeys(tile.worker for tile in tiles))}
    return lambda route: (order.get(route.sender, -1), order.get(route.receiver, -1))
