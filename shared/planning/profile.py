"""The profile: what was measured on a pair of devices, as data and as the file that others can write.

One JSON object (schema `isthmus.profile/v1`, paper 000, 5.2). This module reads it, refuses what is wrong with one sentence
that names file and key, and writes it. It knows nothing of what the numbers are used for.
"""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from shared.errors import PlanError
from shared.files.json_file import read_json

SCHEMA = "isthmus.profile/v1"

FLOAT32_BITS = 32
"""The width at which a feature is sent as it is; narrower ones are whole bits. Which of them a codec has is not known here."""

DEFAULT_CODEC_FAMILY = "uniform"
"""The family of a profile that names none: profiles from before that key were measured with these codecs."""

Entries = tuple[float | None, ...]
"""One number for each cut 0..L; None where it was not measured."""


def is_bit_width(value: object) -> TypeGuard[int]:
    """Whether a number can be the bits of an element."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= FLOAT32_BITS


@dataclass(frozen=True)
class ProfiledBlock:
    """A block and what moving it carries."""

    name: str
    bytes: float
    """Parameters, buffers and optimizer state."""


@dataclass(frozen=True)
class LinearSeconds:
    """Time that grows with bytes, from what none of them would take (paper 000, Fig. 11)."""

    seconds_per_byte: float
    seconds: float


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
        gradient_bytes = tuple(None if size is None else size * bits / FLOAT32_BITS for size in self.gradient_bytes)
        return replace(self, gradient_bytes=gradient_bytes)

    @cached_property
    def bytes_before(self) -> tuple[float, ...]:
        """Bytes of the blocks [0, c), for each cut c."""
        return tuple(itertools.accumulate((block.bytes for block in self.blocks), initial=0.0))


def load_profile(path: Path) -> Profile:
    """The profile in a file. PlanError when it cannot be read or holds anything wrong."""
    return parse_profile(read_json(path, "profile", PlanError), str(path))


def parse_profile(mapping: object, where: str) -> Profile:
    """The profile in a decoded JSON object; `where` begins every complaint."""
    if not isinstance(mapping, Mapping):
        raise PlanError(f"{where}: a profile is a JSON object, not {_shown(mapping)}")
    if mapping.get("schema") != SCHEMA:
        raise PlanError(f'{where}: schema is {_shown(mapping.get("schema"))}; this version reads "{SCHEMA}"')
    reader = _Reader(mapping, where)
    blocks = reader.blocks()
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


def _shown(value: object) -> str:
    """A value for a sentence: as JSON would show it, cut short."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Reader:
    """Takes checked values out of the decoded object; every refusal names file and key."""

    def __init__(self, mapping: Mapping[str, Any], where: str) -> None:
        self.mapping = mapping
        self.where = where

    def refuse(self, key: str, value: object, right: str) -> PlanError:
        return PlanError(f"{self.where}: {key} is {_shown(value)}; it must be {right}")

    def take(self, key: str) -> Any:
        if key not in self.mapping:
            raise PlanError(f"{self.where}: {key} is missing; a profile of schema {SCHEMA} has it")
        return self.mapping[key]

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str):
            raise self.refuse(key, value, "a string")
        return value

    def whole(self, key: str, least: int) -> int:
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.refuse(key, value, f"a whole number of {least} or more")
        return value

    def number(self, key: str, value: object, or_null: str = "") -> float:
        """A finite number of 0 or more, whole where the file has it whole."""
        good = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            good = good and math.isfinite(float(value)) and float(value) >= 0.0  # type: ignore[arg-type]
        except OverflowError:
            good = False
        if not good:
            raise self.refuse(key, value, f"a finite number of 0 or more{or_null}")
        assert isinstance(value, int | float)
        return value

    def optional_number(self, key: str) -> float | None:
        value = self.mapping.get(key)
        return None if value is None else self.number(key, value, ", or null where it was not measured")

    def listed(self, key: str, length: int) -> list[Any]:
        values = self.take(key)
        if not isinstance(values, list):
            raise self.refuse(key, values, f"a list of {length} entries")
        if len(values) != length:
            raise PlanError(
                f"{self.where}: {key} has {len(values)} entries; with {length - 1} blocks it must have {length}, one a cut"
            )
        return values

    def entries(self, key: str, length: int) -> Entries:
        return tuple(
            None if value is None else self.number(f"{key}[{cut}]", value, ", or null where it was not measured")
            for cut, value in enumerate(self.listed(key, length))
        )

    def optional_entries(self, key: str, length: int) -> Entries | None:
        return None if self.mapping.get(key) is None else self.entries(key, length)

    def blocks(self) -> tuple[ProfiledBlock, ...]:
        values = self.take("blocks")
        if not isinstance(values, list) or not values:
            raise self.refuse("blocks", values, "a list of one block or more")
        return tuple(self.block(f"blocks[{index}]", value) for index, value in enumerate(values))

    def block(self, key: str, value: object) -> ProfiledBlock:
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or "bytes" not in value:
            raise self.refuse(key, value, 'an object with "name", a string, and "bytes", a number')
        return ProfiledBlock(value["name"], self.number(f"{key}.bytes", value["bytes"]))

    def encode(self) -> LinearSeconds | None:
        return None if self.take("encode") is None else LinearSeconds(*self.line("encode"))

    def line(self, key: str) -> tuple[float, float]:
        """Seconds per byte, and seconds."""
        value = self.take(key)
        if not isinstance(value, Mapping) or not {"seconds_per_byte", "seconds"} <= value.keys():
            raise self.refuse(
                key, value, 'an object with "seconds_per_byte" and "seconds", or null where it was not measured'
            )
        return (
            self.number(f"{key}.seconds_per_byte", value["seconds_per_byte"]),
            self.number(f"{key}.seconds", value["seconds"]),
        )

    def min_bits(self, length: int) -> tuple[int | None, ...] | None:
        if self.take("min_bits") is None:
            return None
        values = self.listed("min_bits", length)
        for cut, value in enumerate(values):
            if value is not None and not is_bit_width(value):
                allowed = f"an integer of 1 to {FLOAT32_BITS}, or null where it was not measured"
                raise self.refuse(f"min_bits[{cut}]", value, allowed)
        return tuple(values)
