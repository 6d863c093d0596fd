"""Files of chains, schema `isthmus.chain/v1`: seconds of every run of blocks on every stage, and the links between neighbours.

The file does not say whether its seconds contain a replay, so they count at every K.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from edge_agent.planning.profile.profile import Hop, MeasuredLink, Profile, WorkerProfile, no_times
from edge_agent.planning.profile.reader import Reader
from edge_agent.planning.rates import Rates
from shared.errors import PlanError

SCHEMA = "isthmus.chain/v1"


def parse(decoded: Mapping[str, object], where: str) -> Profile:
    """Read the profile in a decoded JSON object of this schema. PlanError, beginning with `where`, for any error in it."""
    reader = Reader(decoded, where, "chain", SCHEMA)
    blocks = reader.blocks()
    cuts = len(blocks) + 1
    workers = _stages(reader, cuts)
    names = [worker.name for worker in workers]
    reader.check_names(names)
    between = _links_between(reader, set(names))
    profile = Profile(
        model=reader.text("model"),
        batch_size=reader.whole("batch_size", least=1),
        blocks=blocks,
        feature_bytes=reader.entries("feature_bytes", cuts),
        gradient_bytes=reader.entries("gradient_bytes", cuts),
        encode=reader.encode(),
        min_bits=reader.min_bits(cuts),
        workers=workers,
        links=(between or {}) | _links(reader, names),
        links_stay=between is None,
    )
    if len(names) > len(blocks):
        raise PlanError(
            f"{where}: there are {len(names)} stages and {len(blocks)} blocks, and each stage must have a block at least; "
            "leave stages out"
        )
    for worker in workers:
        if np.isnan(worker.replayed[np.triu_indices(cuts, 1)]).all():
            raise PlanError(
                f"{where}: nothing was measured on stage {worker.name!r}: each of its seconds is null, so there is nothing to "
                "choose from"
            )
    return profile


def _stages(reader: Reader, cuts: int) -> tuple[WorkerProfile, ...]:
    values = reader.take("stages")
    if not isinstance(values, list) or not values:
        raise reader.refuse("stages", values, "a list of one stage or more")
    stages = []
    for index, value in enumerate(values):
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or "seconds" not in value:
            raise reader.refuse(
                f"stages[{index}]", value, f'an object with "name", a string, and "seconds", {cuts} lists of {cuts}'
            )
        table = reader.table(f"stages[{index}].seconds", value["seconds"], cuts)
        stages.append(WorkerProfile(value["name"], table, no_times(cuts - 1)))
    return tuple(stages)


def _links(reader: Reader, names: list[str]) -> dict[Hop, MeasuredLink]:
    values = reader.take("links")
    if not isinstance(values, list) or len(values) != len(names) - 1:
        raise reader.refuse(
            "links", values, f"a list of {len(names) - 1}, one between each two neighbours of {len(names)} stages"
        )
    return {hop: _link(reader, f"links[{index}]", values[index]) for index, hop in enumerate(pairwise(names))}


def _links_between(reader: Reader, names: set[str]) -> dict[Hop, MeasuredLink] | None:
    values = reader.mapping.get("links_between")
    if values is None:
        return None
    if not isinstance(values, list):
        raise reader.refuse("links_between", values, "a list of links")
    links = {}
    for index, value in enumerate(values):
        near, far = (value.get("from"), value.get("to")) if isinstance(value, Mapping) else (None, None)
        if not (isinstance(near, str) and isinstance(far, str) and near != far and {near, far} <= names):
            raise reader.refuse(
                f"links_between[{index}]", value, 'an object with "from" and "to", the names of two stages'
            )
        links[near, far] = _link(reader, f"links_between[{index}]", value)
    return links


def _link(reader: Reader, key: str, value: Any) -> MeasuredLink:
    fields = ("uplink", "downlink", "round_trip_seconds")
    if not isinstance(value, Mapping) or not value.keys() >= set(fields):
        raise reader.refuse(key, value, f"an object with {', '.join(fields)}, rates in bit/s")
    uplink, downlink, round_trip_seconds = (reader.number(f"{key}.{field}", value[field]) for field in fields)
    try:
        Rates(uplink, downlink, round_trip_seconds)
    except PlanError as error:
        raise PlanError(f"{reader.where}: {key}: {error}") from error
    return MeasuredLink(uplink, downlink, round_trip_seconds)
