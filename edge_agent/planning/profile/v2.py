"""Files of schema `isthmus.profile/v2`, read and written.

```text
model, batch_size, feature_bytes[L + 1], gradient_bytes[L + 1]     by cut; null where it was not measured
blocks[]    name, bytes, parameter_bytes or null
workers[]   name, replayed[L + 1][L + 1], serial[L + 1][L + 1] or null, message {seconds, seconds_per_byte, waited_seconds}
links[]     between [near, far], uplink, downlink, round_trip_seconds; each null where it was not measured
encode      seconds, seconds_per_byte; null where it was not measured
codec_family, min_bits[L + 1] or null, max_staleness or null
```
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from edge_agent.planning.measurements import Floats
from edge_agent.planning.profile.profile import Hop, MeasuredLink, MessageSeconds, Profile, WorkerProfile, no_times
from edge_agent.planning.profile.reader import Reader
from shared.errors import PlanError

SCHEMA = "isthmus.profile/v2"


def parse(decoded: Mapping[str, object], where: str) -> Profile:
    """Read the profile in a decoded JSON object of this schema. PlanError, beginning with `where`, for any error in it."""
    reader = Reader(decoded, where, "profile", SCHEMA)
    blocks = reader.blocks()
    cuts = len(blocks) + 1
    workers = _workers(reader, cuts)
    reader.check_names([worker.name for worker in workers])
    return Profile(
        model=reader.text("model"),
        batch_size=reader.whole("batch_size", least=1),
        blocks=blocks,
        feature_bytes=reader.entries("feature_bytes", cuts),
        gradient_bytes=reader.entries("gradient_bytes", cuts),
        workers=workers,
        links=_links(reader, {worker.name for worker in workers}),
        encode=reader.encode(),
        codec_family=reader.text("codec_family"),
        min_bits=reader.min_bits(cuts),
        max_staleness=None if reader.take("max_staleness") is None else reader.whole("max_staleness", least=0),
        extra={key: value for key, value in decoded.items() if key not in _KEYS},
    )


def profile_to_json(profile: Profile) -> str:
    """Write the file's text for a profile, a key a line. `parse` of it gives the same profile."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "model": profile.model,
        "batch_size": profile.batch_size,
        "blocks": [
            {"name": block.name, "bytes": block.bytes, "parameter_bytes": block.parameter_bytes}
            for block in profile.blocks
        ],
        "feature_bytes": list(profile.feature_bytes),
        "gradient_bytes": list(profile.gradient_bytes),
        "workers": [
            {
                "name": worker.name,
                "replayed": _rows(worker.replayed),
                "serial": None if np.isnan(worker.serial).all() else _rows(worker.serial),
                "message": worker.message._asdict(),
            }
            for worker in profile.workers
        ],
        "links": [{"between": list(hop), **link._asdict()} for hop, link in profile.links.items()],
        "encode": profile.encode and asdict(profile.encode),
        "codec_family": profile.codec_family,
        "min_bits": None if profile.min_bits is None else list(profile.min_bits),
        "max_staleness": profile.max_staleness,
    } | dict(profile.extra)
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


_KEYS = {
    "schema",
    "model",
    "batch_size",
    "blocks",
    "feature_bytes",
    "gradient_bytes",
    "workers",
    "links",
    "encode",
    "codec_family",
    "min_bits",
    "max_staleness",
}


def _rows(table: Floats) -> list[list[float | None]]:
    return [[None if math.isnan(seconds) else seconds for seconds in row] for row in table.tolist()]


def _workers(reader: Reader, cuts: int) -> tuple[WorkerProfile, ...]:
    values = reader.take("workers")
    if not isinstance(values, list) or not values:
        raise reader.refuse("workers", values, "a list of one worker or more")
    workers = []
    for index, value in enumerate(values):
        key = f"workers[{index}]"
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or "replayed" not in value:
            raise reader.refuse(key, value, f'an object with "name", a string, and "replayed", {cuts} lists of {cuts}')
        serial = value.get("serial")
        workers.append(
            WorkerProfile(
                value["name"],
                reader.table(f"{key}.replayed", value["replayed"], cuts),
                no_times(cuts - 1) if serial is None else reader.table(f"{key}.serial", serial, cuts),
                _message(reader, f"{key}.message", value.get("message", {})),
            )
        )
    return tuple(workers)


def _message(reader: Reader, key: str, value: object) -> MessageSeconds:
    if not isinstance(value, Mapping) or not value.keys() <= set(MessageSeconds._fields):
        raise reader.refuse(key, value, f"an object with {', '.join(MessageSeconds._fields)}")
    return MessageSeconds(**{name: reader.number(f"{key}.{name}", number) for name, number in value.items()})


def _links(reader: Reader, names: set[str]) -> dict[Hop, MeasuredLink]:
    values = reader.take("links")
    if not isinstance(values, list):
        raise reader.refuse("links", values, "a list of links")
    links: dict[Hop, MeasuredLink] = {}
    for index, value in enumerate(values):
        key = f"links[{index}]"
        between = value.get("between") if isinstance(value, Mapping) else None
        if not isinstance(between, list) or len(between) != 2 or len(names.intersection(map(str, between))) != 2:
            raise reader.refuse(key, value, 'an object with "between", the names of two workers')
        near, far = map(str, between)
        if (near, far) in links or (far, near) in links:
            raise PlanError(f"{reader.where}: {key}: there are two links between {near!r} and {far!r}; leave one out")
        assert isinstance(value, Mapping)
        links[near, far] = _link(reader, key, value)
    return links


def _link(reader: Reader, key: str, value: Mapping[str, object]) -> MeasuredLink:
    found: dict[str, float | None] = {}
    for name in MeasuredLink._fields:
        number = value.get(name)
        found[name] = (
            None if number is None else reader.number(f"{key}.{name}", number, ", or null where it was not measured")
        )
        if found[name] == 0.0 and name != "round_trip_seconds":
            raise reader.refuse(f"{key}.{name}", number, "a rate above 0 in bit/s, or null where it was not measured")
    return MeasuredLink(**found)
