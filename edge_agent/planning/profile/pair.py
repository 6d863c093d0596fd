"""Profiles of two workers, from lists by cut of what either side takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from edge_agent.planning.measurements import Entries, Floats, Linear, ProfiledBlock
from edge_agent.planning.profile.profile import (
    DEFAULT_CODEC_FAMILY,
    MeasuredLink,
    MessageSeconds,
    Profile,
    WorkerProfile,
    no_times,
)

EDGE, TRAINER = "edge", "trainer"
"""Names of the two workers."""
NO_OVERHEAD = Linear(0.0, 0.0)


def pair_profile(
    model: str,
    batch_size: int,
    blocks: Sequence[ProfiledBlock],
    feature_bytes: Entries,
    gradient_bytes: Entries,
    edge_seconds: Entries,
    cloud_seconds: Entries,
    encode: Linear | None,
    min_bits: tuple[int | None, ...] | None,
    max_staleness: int,
    codec_family: str = DEFAULT_CODEC_FAMILY,
    serial_edge_seconds: Entries | None = None,
    overhead: Linear = NO_OVERHEAD,
    serial_overhead_seconds: float = 0.0,
    round_trip_seconds: float | None = None,
    remarks: Mapping[str, Any] | None = None,
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
        MessageSeconds(overhead.seconds, overhead.seconds_per_unit, serial_overhead_seconds),
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
        remarks=remarks or {},
    )


def _up_to(seconds: Entries) -> Floats:
    """Return the table of a worker that has the blocks up to each cut."""
    table = no_times(len(seconds) - 1)
    for cut, value in enumerate(seconds[1:], start=1):
        if value is not None:
            table[0, cut] = value
    return table
