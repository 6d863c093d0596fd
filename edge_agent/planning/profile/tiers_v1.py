"""Files of three tiers, schema `isthmus.tiers/v1`: seconds of each block by samples, and a link for every pair.

```text
model, batch_size, input_bytes, label_bytes, feature_bytes[L + 1]     bytes of a sample
blocks[]           name, bytes (of weights), min_samples; may be left out: whole (false), reads_raw (true for the first alone)
workers[]          name, forward[L] [a, b], backward[L] [a, b], update[L]    seconds = a + b * samples; the device first
                   message [s, s/byte] of each that it sends or receives; may be left out
links[]            between [near, far], up, down (bit/s, up from the first), round_trip_seconds; every pair of workers
shared_segments[]  numbers of links
codecs{}           bits, encode [s, s/byte], decode [s, s/byte]; may be left out
message            [s, s/byte] of workers that have none of their own; may be left out
```
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, combinations
from typing import Any

import numpy as np

from edge_agent.planning.measurements import Floats, ProfiledBlock, is_bit_width
from edge_agent.planning.operation_costs import BlockCosts, BlockSeconds, CodecCosts, Linear
from edge_agent.planning.profile.profile import Hop, MeasuredLink, MessageSeconds, Profile, WorkerProfile, no_times
from edge_agent.planning.profile.reader import Reader
from edge_agent.planning.rates import Rates
from shared.bounds import is_worker
from shared.errors import PlanError

SCHEMA = "isthmus.tiers/v1"
TIERS = 3


def parse(decoded: Mapping[str, object], where: str) -> Profile:
    """Read the profile in a decoded JSON object of this schema. PlanError, beginning with `where`, for any error in it."""
    reader = Reader(decoded, where, "profile", SCHEMA)
    batch_size = reader.whole("batch_size", least=1)
    blocks = tuple(_block(reader, index, each, batch_size) for index, each in _listed(reader, "blocks"))
    workers, messages = _workers(reader, len(blocks))
    costs = BlockCosts(
        workers,
        _sample_bytes(reader, len(blocks)),
        tuple(block.bytes for block in blocks),
        reader.number("label_bytes", reader.take("label_bytes")),
        _codecs(reader),
        Linear(0.0) if decoded.get("message") is None else _line(reader, "message", decoded["message"]),
        messages,
    )
    names = list(costs.blocks)
    links = _links(reader, names)
    profile = Profile(
        model=reader.text("model"),
        batch_size=batch_size,
        blocks=blocks,
        feature_bytes=(),
        gradient_bytes=(),
        workers=(),
        links=links,
        by_samples=costs,
        shared_segments=_segments(reader, list(links)),
    )
    return with_batch_size(profile, batch_size)


def with_batch_size(profile: Profile, batch_size: int) -> Profile:
    """Return a profile that has costs by samples for other batches. PlanError for an empty batch."""
    if batch_size < 1:
        raise PlanError(f"the batch size is {batch_size}; it must be 1 or more")
    costs = profile.by_samples
    assert costs is not None
    whole = tuple(size * batch_size for size in costs.feature_bytes)
    return replace(
        profile,
        batch_size=batch_size,
        feature_bytes=whole,
        gradient_bytes=whole,
        workers=tuple(
            _whole_batches(name, each, batch_size, costs.message_at(name)) for name, each in costs.blocks.items()
        ),
    )


def _listed(reader: Reader, key: str) -> list[tuple[int, Any]]:
    values = reader.take(key)
    if not isinstance(values, list) or not values:
        raise reader.refuse(key, values, "a list of one entry or more")
    return list(enumerate(values))


def _block(reader: Reader, index: int, value: object, batch_size: int) -> ProfiledBlock:
    key, fields = f"blocks[{index}]", {"name", "bytes", "min_samples"}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not fields <= value.keys():
        raise reader.refuse(key, value, 'an object with "name", a string, "bytes" and "min_samples", numbers')
    least = value["min_samples"]
    if not isinstance(least, int) or isinstance(least, bool) or not 1 <= least <= batch_size:
        raise reader.refuse(f"{key}.min_samples", least, f"a whole number of 1 to {batch_size}, the batch size")
    whole, reads_raw = value.get("whole", False), value.get("reads_raw", index == 0)
    if not isinstance(whole, bool):
        raise reader.refuse(f"{key}.whole", whole, "true or false")
    if not isinstance(reads_raw, bool) or (index == 0 and not reads_raw):
        raise reader.refuse(f"{key}.reads_raw", reads_raw, "true or false, and true for the first block")
    size = reader.number(f"{key}.bytes", value["bytes"])
    return ProfiledBlock(value["name"], size, size, least, whole, reads_raw)


def _sample_bytes(reader: Reader, blocks: int) -> tuple[float, ...]:
    """Read the bytes of one sample by cut. Before the first block it is the input, as it travels."""
    sizes = [
        reader.number(f"feature_bytes[{cut}]", size)
        for cut, size in enumerate(reader.listed("feature_bytes", blocks + 1))
    ]
    return reader.number("input_bytes", reader.take("input_bytes")), *sizes[1:]


def _workers(reader: Reader, blocks: int) -> tuple[dict[str, tuple[BlockSeconds, ...]], dict[str, Linear]]:
    """Read the blocks of each worker, and the cost of its messages where it has one of its own."""
    values = _listed(reader, "workers")
    if len(values) != TIERS:
        raise PlanError(
            f"{reader.where}: workers has {len(values)} entries; three tiers are {TIERS} workers, the device, the edge server "
            "and the cloud"
        )
    found: dict[str, tuple[BlockSeconds, ...]] = {}
    messages: dict[str, Linear] = {}
    for index, value in values:
        key = f"workers[{index}]"
        fields = {"name", "forward", "backward", "update"}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not fields <= value.keys():
            raise reader.refuse(
                key, value, 'an object with "name", a string, "forward", "backward" and "update", lists'
            )
        if not is_worker(value["name"]):
            raise reader.refuse(f"{key}.name", value["name"], "1 to 63 letters, digits, - and _")
        if value["name"] in found:
            raise PlanError(
                f"{reader.where}: two workers are called {value['name']!r}; each must have a name of its own"
            )
        lists = [
            _by_block(reader, f"{key}.{field}", value[field], blocks) for field in ("forward", "backward", "update")
        ]
        found[value["name"]] = tuple(
            BlockSeconds(
                _line(reader, f"{key}.forward[{block}]", forward),
                _line(reader, f"{key}.backward[{block}]", backward),
                reader.number(f"{key}.update[{block}]", update),
            )
            for block, (forward, backward, update) in enumerate(zip(*lists, strict=True))
        )
        if value.get("message") is not None:
            messages[value["name"]] = _line(reader, f"{key}.message", value["message"])
    return found, messages


def _by_block(reader: Reader, key: str, values: object, blocks: int) -> list[Any]:
    if not isinstance(values, list) or len(values) != blocks:
        raise reader.refuse(key, values, f"a list of {blocks} entries, one a block")
    return values


def _line(reader: Reader, key: str, value: object) -> Linear:
    if not isinstance(value, list) or len(value) != 2:
        raise reader.refuse(key, value, "a pair [seconds, seconds for each sample or byte]")
    return Linear(reader.number(f"{key}[0]", value[0]), reader.number(f"{key}[1]", value[1]))


def _codecs(reader: Reader) -> dict[str, CodecCosts]:
    values = reader.mapping.get("codecs") or {}
    if not isinstance(values, Mapping):
        raise reader.refuse("codecs", values, "an object of codecs by name")
    found = {}
    for name, value in values.items():
        key = f"codecs.{name}"
        if not isinstance(value, Mapping) or not {"bits", "encode", "decode"} <= value.keys():
            raise reader.refuse(key, value, 'an object with "bits", "encode" and "decode"')
        if not is_bit_width(value["bits"]):
            raise reader.refuse(f"{key}.bits", value["bits"], "a whole number of 1 to 32")
        encode, decode = (_line(reader, f"{key}.{field}", value[field]) for field in ("encode", "decode"))
        found[name] = CodecCosts(value["bits"], encode, decode)
    return found


def _links(reader: Reader, names: list[str]) -> dict[Hop, MeasuredLink]:
    links: dict[Hop, MeasuredLink] = {}
    for index, value in _listed(reader, "links"):
        key = f"links[{index}]"
        between = value.get("between") if isinstance(value, Mapping) else None
        if not isinstance(between, list) or len(between) != 2 or len({*names}.intersection(map(str, between))) != 2:
            raise reader.refuse(key, value, f'an object with "between", two of {", ".join(names)}')
        near, far = map(str, between)
        if (near, far) in links or (far, near) in links:
            raise PlanError(f"{reader.where}: {key}: there are two links between {near!r} and {far!r}; leave one out")
        links[near, far] = _link(reader, key, value)
    for near, far in combinations(names, 2):
        if (near, far) not in links and (far, near) not in links:
            raise PlanError(
                f"{reader.where}: there is no link between {near!r} and {far!r}; every two workers must have one, over others "
                "where need be"
            )
    return links


def _link(reader: Reader, key: str, value: Mapping[str, object]) -> MeasuredLink:
    fields = ("up", "down", "round_trip_seconds")
    if not value.keys() >= set(fields):
        raise reader.refuse(key, value, f"an object with {', '.join(fields)}, rates in bit/s")
    up, down, round_trip_seconds = (reader.number(f"{key}.{field}", value[field]) for field in fields)
    try:
        Rates(up, down, round_trip_seconds)
    except PlanError as error:
        raise PlanError(f"{reader.where}: {key}: {error}") from error
    return MeasuredLink(up, down, round_trip_seconds)


def _segments(reader: Reader, hops: list[Hop]) -> tuple[tuple[Hop, ...], ...]:
    values = reader.take("shared_segments")
    if not isinstance(values, list):
        raise reader.refuse("shared_segments", values, "a list of lists of links' numbers")
    for index, each in enumerate(values):
        known = isinstance(each, list) and all(type(link) is int and 0 <= link < len(hops) for link in each)
        if not known or len(set(each)) != len(each):
            raise reader.refuse(
                f"shared_segments[{index}]", each, f"a list of different numbers of links, from 0 to {len(hops) - 1}"
            )
    return tuple(tuple(hops[link] for link in each) for each in values)


def _whole_batches(name: str, blocks: tuple[BlockSeconds, ...], batch_size: int, message: Linear) -> WorkerProfile:
    """Return the same as seconds of runs of blocks on whole batches. message: each that the worker sends or receives."""
    forward, rest = (
        np.array([0.0, *accumulate(seconds)])
        for seconds in (
            [block.forward.at(batch_size) for block in blocks],
            [block.forward.at(batch_size) + block.backward.at(batch_size) + block.update for block in blocks],
        )
    )
    serial = _runs(rest)
    replayed = serial + _runs(forward)
    replayed[:, -1] = serial[:, -1]  # after the last block the backward pass follows at once
    # A link that is used carries a feature and an error gradient in a step. The next step waits for what the second costs.
    both = MessageSeconds(2 * message.seconds, message.seconds_per_unit, message.seconds)
    return WorkerProfile(name, replayed, serial, both)


def _runs(before: Floats) -> Floats:
    """Return the seconds of the blocks [i, j) at [i, j], of those of the blocks [0, c). NaN where there is none."""
    table = no_times(len(before) - 1)
    first, stop = np.triu_indices(len(before), 1)
    table[first, stop] = before[stop] - before[first]
    return table
