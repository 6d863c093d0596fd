"""Profiles and links for the tests of planning: strategies, and one small profile whose numbers are easy to follow."""

from hypothesis import strategies as st

from shared.planning import Block, Encode, Overhead, Profile, Rates

MBIT = 1e6


def small_profile(**changes) -> Profile:
    """Four blocks; at 8 mbit each way a byte takes a microsecond. Cut 0 was not measured, edge-only was."""
    fields = {
        "model": "small",
        "batch_size": 8,
        "blocks": tuple(Block(f"b{i}", 1e6 * (i + 1)) for i in range(4)),
        "feature_bytes": (None, 4e6, 2e6, 1e6, None),
        "gradient_bytes": (None, 4e6, 2e6, 1e6, None),
        "edge_seconds": (None, 1.0, 2.0, 3.0, 5.0),
        "cloud_seconds": (None, 0.4, 0.3, 0.2, 0.0),
        "encode": Encode(1e-7, 0.125),
        "min_bits": None,
        "max_staleness": 3,
    }
    return Profile(**(fields | changes))


AT_8_MBIT = Rates(8 * MBIT, 8 * MBIT)

seconds = st.floats(0.001, 10.0)
sizes = st.floats(1.0, 1e8)
rates = st.builds(Rates, st.floats(1e4, 1e9), st.floats(1e4, 1e9), st.just(0.0) | st.floats(0.0, 2.0))


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """Mostly measured, sometimes not."""
    return st.one_of(strategy, strategy, strategy, st.none())


@st.composite
def profiles(draw, max_blocks: int = 8, complete: bool = False) -> Profile:
    """Any profile that loads; with `complete`, everything from cut 1 on was measured."""
    count = draw(st.integers(2, max_blocks))
    entry = (lambda strategy: strategy) if complete else maybe

    def column(strategy, first, last):
        return (draw(maybe(first)), *(draw(entry(strategy)) for _ in range(count - 1)), last)

    edge = column(seconds, seconds, draw(seconds))
    return Profile(
        model="any",
        batch_size=draw(st.integers(1, 512)),
        blocks=tuple(Block(f"b{i}", draw(st.floats(0.0, 1e8))) for i in range(count)),
        feature_bytes=column(sizes, sizes, None),
        gradient_bytes=column(sizes, sizes, None),
        edge_seconds=edge,
        cloud_seconds=column(seconds, seconds, 0.0),
        encode=Encode(draw(st.floats(0.0, 1e-6)), draw(st.floats(0.0, 1.0)))
        if complete
        else draw(maybe(st.builds(Encode, st.floats(0.0, 1e-6), st.floats(0.0, 1.0)))),
        min_bits=draw(st.none() | st.tuples(*[entry(st.sampled_from((2, 4, 8, 32)))] * (count + 1))),
        max_staleness=draw(st.integers(0, 6)),
        serial_edge_seconds=draw(st.none() | st.tuples(*[maybe(seconds)] * (count + 1))),
        overhead=draw(st.builds(Overhead, st.just(0.0) | st.floats(0.0, 1e-6), st.just(0.0) | seconds)),
        serial_overhead_seconds=draw(st.just(0.0) | seconds),
        round_trip_seconds=draw(st.none() | st.floats(0.0, 2.0)),
    )
