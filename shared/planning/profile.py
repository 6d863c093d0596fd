"""The profile: what was measured on a pair of devices, as data and as the file that others can write.

One JSON object (schema `isthmus.profile/v1`, paper 000, 5.2). This module reads it, refuses what is wrong with one sentence
that names file and key, and writes it. It knows nothing of what the numbers are used for.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shared.errors import PlanError
from shared.files.json_file import read_json
from shared.planning.measurements import Entries, LinearSeconds, ProfiledBlock, at_bits, bytes_before
from shared.planning.reader import Reader

SCHEMA = "isthmus.profile/v1"

DEFAULT_CODEC_FAMILY = "uniform"
"""The family of a profile that names none: profiles from before that key were measured with these codecs."""

NO_OVERHEAD = LinearSeconds(0.0, 0.0)


@dataclass(frozen=True)
class Profile:
    """A model of L blocks on one pair of devices. Lists by cut have L + 1 entries; index = blocks on the edge."""

    model: str
    batch_size: int
    blocks: tuple[ProfiledBlock, ...]
    feature_bytes: Entries
    """Bytes of the float32 feature that crosses the cut forward."""
    gradient_bytes: Entries
    """Bytes of the float32 error gradient that crosses it backward."""
    edge_seconds: Entries
    """Seconds per step of forward, replay, backward and update on the edge, run up to the cut."""
    cloud_seconds: Entries
    """Seconds per step of the rest on the trainer."""
    encode: LinearSeconds | None
    """Time of encoding a feature, by the bytes of its float32 form. None when it was not measured: then only 32 bits can be
    planned with."""
    min_bits: tuple[int | None, ...] | None
    """Smallest width within the accuracy budget at each cut; None as a whole when nothing was calibrated, so any is allowed."""
    max_staleness: int
    """Largest K within the accuracy budget."""
    codec_family: str = DEFAULT_CODEC_FAMILY
    """The family of codecs that `encode` and `min_bits` were measured with; they say nothing of another."""
    serial_edge_seconds: Entries | None = None
    """`edge_seconds` at K = 0, where nothing is replayed. None, as a whole or at a cut, means the same as `edge_seconds`."""
    overhead: LinearSeconds = NO_OVERHEAD
    """What a step costs the edge beside computing and encoding, by the bytes that it sends and receives: the stream, the data,
    the handing over between threads."""
    serial_overhead_seconds: float = 0.0
    """The part of the overhead that a batch waits for at K = 0; the edge does the rest while the batch is away."""
    round_trip_seconds: float | None = None
    """There and back between the pair, as it was when the profile was measured; None where it was not."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the file beyond the schema, kept as they were."""

    def __len__(self) -> int:
        """L, the number of blocks."""
        return len(self.blocks)

    def with_gradient_bits(self, bits: int) -> "Profile":
        """The same with error gradients of so many bits a number; the schema has float32 ones."""
        return replace(self, gradient_bytes=at_bits(self.gradient_bytes, bits))

    @cached_property
    def bytes_before(self) -> tuple[float, ...]:
        """Bytes of the blocks [0, c), for each cut c."""
        return bytes_before(self.blocks)


def load_profile(path: Path) -> Profile:
    """The profile in a file. PlanError when it cannot be read or holds anything wrong."""
    return parse_profile(read_json(path, "profile", PlanError), str(path))


def parse_profile(mapping: object, where: str) -> Profile:
    """The profile in a decoded JSON object; `where` begins every complaint."""
    reader = Reader(mapping, where, "profile", SCHEMA)
    blocks, mapping = reader.blocks(), reader.mapping
    profile = Profile(
        model=reader.text("model"),
        batch_size=reader.whole("batch_size", least=1),
        blocks=blocks,
        feature_bytes=reader.entries("feature_bytes", len(blocks) + 1),
        gradient_bytes=reader.entries("gradient_bytes", len(blocks) + 1),
        edge_seconds=reader.entries("edge_seconds", len(blocks) + 1),
        cloud_seconds=reader.entries("cloud_seconds", len(blocks) + 1),
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
    if not any(_is_measured(profile, cut) for cut in range(1, len(profile) + 1)):
        raise PlanError(
            f"{where}: no cut from 1 to {len(profile)} has all of {', '.join(_BY_CUT)} measured, so there is nothing to "
            "choose from"
        )
    return profile


def profile_to_json(profile: Profile) -> str:
    """The file's text for a profile; `parse_profile` of it gives the same profile."""
    mapping: dict[str, Any] = {
        "schema": SCHEMA,
        "model": profile.model,
        "batch_size": profile.batch_size,
        "blocks": [{"name": block.name, "bytes": block.bytes} for block in profile.blocks],
    }
    mapping |= {name: list(getattr(profile, name)) for name in _BY_CUT}
    mapping["encode"] = profile.encode and asdict(profile.encode)
    mapping["min_bits"] = None if profile.min_bits is None else list(profile.min_bits)
    mapping["max_staleness"] = profile.max_staleness
    mapping["codec_family"] = profile.codec_family
    if profile.serial_edge_seconds is not None:
        mapping["serial_edge_seconds"] = list(profile.serial_edge_seconds)
    if profile.overhead != NO_OVERHEAD:
        mapping["overhead"] = asdict(profile.overhead)
    if profile.serial_overhead_seconds:
        mapping["serial_overhead_seconds"] = profile.serial_overhead_seconds
    if profile.round_trip_seconds is not None:
        mapping["round_trip_seconds"] = profile.round_trip_seconds
    return json.dumps(mapping | dict(profile.extra), indent=2, allow_nan=False) + "\n"


_BY_CUT = ("feature_bytes", "gradient_bytes", "edge_seconds", "cloud_seconds")
_ADDED = ("codec_family", "serial_edge_seconds", "overhead", "serial_overhead_seconds", "round_trip_seconds")
_KEYS = {
    "schema",
    "model",
    "batch_size",
    "blocks",
    "encode",
    "min_bits",
    "max_staleness",
    *_BY_CUT,
    *_ADDED,
}


def _is_measured(profile: Profile, cut: int) -> bool:
    """Whether a cut can be planned with at all; edge-only needs no more than the edge's own time."""
    needed = ("edge_seconds",) if cut == len(profile) else _BY_CUT
    return all(getattr(profile, name)[cut] is not None for name in needed)
