"""Files of two workers on one cut, schema `isthmus.profile/v1`: lists by cut of the costs of either side."""

from collections.abc import Mapping, Sequence
from typing import Any

from edge_agent.planning.measurements import Entries, Floats, LinearSeconds, ProfiledBlock
from edge_agent.planning.profile.profile import (
    DEFAULT_CODEC_FAMILY,
    MeasuredLink,
    MessageSeconds,
    Profile,
    WorkerProfile,
    no_times,
)
from edge_agent.planning.profile.reader import Reader
from shared.errors import PlanError

SCHEMA = "isthmus.profile/v1"
EDGE, TRAINER = "edge", "trainer"
"""Names of the two workers. The file has none."""

NO_OVERHEAD = LinearSeconds(0.0, 0.0)


def pair_profile(
    model: str,
    batch_size: int,
    blocks: Sequence[ProfiledBlock],
    feature_bytes: Entries,
    gradient_bytes: Entries,
    edge_seconds: Entries,
    cloud_seconds: Entries,
    encode: LinearSeconds | None,
    min_bits: tuple[int | None, ...] | None,
    max_staleness: int,
    codec_family: str = DEFAULT_CODEC_FAMILY,
    serial_edge_seconds: Entries | None = None,
    overhead: LinearSeconds = NO_OVERHEAD,
    serial_overhead_seconds: float = 0.0,
    round_trip_seconds: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Profile:
    """Build the profile of two workers from lists by cut, of L + 1 entries each.

    edge_seconds: of forward, replay, backward and update on the edge, run up to the cut.
    cloud_seconds: of the rest on the trainer.
    serial_edge_seconds: as `edge_seconds` at K = 0; None, as a whole or at a cut, means the same.
    overhead: the edge's cost of a step beside computing and encoding.
    serial_overhead_seconds: the part of it that a batch waits for at K = 0.
    """
    count = len(blocks)
    edge = WorkerProfile(
        EDGE,
        _up_to(edge_seconds),
        _up_to(serial_edge_seconds or (None,) * (count + 1)),
        MessageSeconds(overhead.seconds, overhead.seconds_per_byte, serial_overhead_seconds),
    )
    rest = no_times(count)
    for cut, seconds in enumerate(cloud_seconds[:-1]):
        if seconds is not None:
            rest[cut, count] = seconds
    return Profile(
        model=model,
        batch_size=batch_size,
        blocks=tuple(blocks),
        feature_bytes=feature_bytes,
        gradient_bytes=gradient_bytes,
        workers=(edge, WorkerProfile(TRAINER, rest, no_times(count))),
        links={(EDGE, TRAINER): MeasuredLink(round_trip_seconds=round_trip_seconds)},
        encode=encode,
        codec_family=codec_family,
        min_bits=min_bits,
        max_staleness=max_staleness,
        extra=extra or {},
    )


def parse(mapping: Mapping[str, object], where: str) -> Profile:
    """Read the profile in a decoded JSON object of this schema. PlanError, beginning with `where`, for any error in it."""
    reader = Reader(mapping, where, "profile", SCHEMA)
    blocks = reader.blocks()
    by_cut = {name: reader.entries(name, len(blocks) + 1) for name in _BY_CUT}
    if not any(_is_measured(by_cut, cut) for cut in range(1, len(blocks) + 1)):
        raise PlanError(
            f"{where}: no cut from 1 to {len(blocks)} has all of {', '.join(_BY_CUT)} measured, so there is nothing to "
            "choose from"
        )
    return pair_profile(
        model=reader.text("model"),
        batch_size=reader.whole("batch_size", least=1),
        blocks=blocks,
        **by_cut,
        encode=reader.encode(),
        min_bits=reader.min_bits(len(blocks) + 1),
        serial_edge_seconds=reader.optional_entries("serial_edge_seconds", len(blocks) + 1),
        overhead=NO_OVERHEAD if mapping.get("overhead") is None else LinearSeconds(*reader.line("overhead")),
        serial_overhead_seconds=reader.number("serial_overhead_seconds", mapping.get("serial_overhead_seconds", 0.0)),
        round_trip_seconds=reader.optional_number("round_trip_seconds"),
        max_staleness=reader.whole("max_staleness", least=0),
        codec_family=reader.text("codec_family") if "codec_family" in mapping else DEFAULT_CODEC_FAMILY,
        extra={key: value for key, value in mapping.items() if key not in _KEYS},
    )


_BY_CUT = ("feature_bytes", "gradient_bytes", "edge_seconds", "cloud_seconds")
_KEYS = {
    "schema",
    "model",
    "batch_size",
    "blocks",
    "encode",
    "min_bits",
    "max_staleness",
    *_BY_CUT,
    "codec_family",
    "serial_edge_seconds",
    "overhead",
    "serial_overhead_seconds",
    "round_trip_seconds",
}


def _is_measured(by_cut: Mapping[str, Entries], cut: int) -> bool:
    """Tell whether a cut can be planned with at all. Edge-only needs no more than the edge's own time."""
    needed = ("edge_seconds",) if cut == len(by_cut["edge_seconds"]) - 1 else _BY_CUT
    return all(by_cut[name][cut] is not None for name in needed)


def _up_to(seconds: Entries) -> Floats:
    """Return the table of a worker that has the blocks up to each cut."""
    table = no_times(len(seconds) - 1)
    for cut, value in enumerate(seconds[1:], start=1):
        if value is not None:
            table[0, cut] = value
    return table
