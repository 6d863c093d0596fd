"""What was measured of a model on a chain of workers, as data and as the file that others can write.

One JSON object (schema `isthmus.chain/v1`): seconds of every run of blocks on every stage, and the rates of the links between
neighbours. It knows nothing of what the numbers are used for.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import PlanError
from shared.files.json_file import read_json
from shared.planning.cost import Floats, Rates
from shared.planning.measurements import Entries, LinearSeconds, ProfiledBlock, at_bits, bytes_before
from shared.planning.reader import Reader

CHAIN_SCHEMA = "isthmus.chain/v1"


@dataclass(frozen=True, eq=False)
class MeasuredStage:
    """One worker of the chain."""

    name: str
    seconds: Floats
    """Seconds per step of forward, replay, backward and update of the blocks [i, j), at [i, j]; NaN where it was not measured.
    Shape (L + 1, L + 1)."""


@dataclass(frozen=True, eq=False)
class MeasuredChain:
    """A model of L blocks on N stages, nearest to the samples first. Lists by cut have L + 1 entries; index = blocks before."""

    model: str
    batch_size: int
    blocks: tuple[ProfiledBlock, ...]
    feature_bytes: Entries
    """Bytes of the float32 feature that crosses a cut forward."""
    gradient_bytes: Entries
    """Bytes of the float32 error gradient that crosses it backward."""
    encode: LinearSeconds | None
    """Time of encoding a feature, by the bytes of its float32 form. None when it was not measured: then only 32 bits can be
    planned with."""
    min_bits: tuple[int | None, ...] | None
    """Smallest width within the accuracy budget at each cut; None as a whole when nothing was calibrated, so any is allowed."""
    stages: tuple[MeasuredStage, ...]
    links: tuple[Rates, ...]
    """`links[n]` is between the stages n and n + 1; the uplink goes to n + 1."""
    links_between: Mapping[tuple[str, str], Rates] | None = None
    """Links between stages that are no neighbours here, by their names; the uplink goes to the second. None where the file
    does not say: then a chain in another order has its links in the same places."""

    def __len__(self) -> int:
        """L, the number of blocks."""
        return len(self.blocks)

    @cached_property
    def bytes_before(self) -> tuple[float, ...]:
        """Bytes of the blocks [0, c), for each cut c."""
        return bytes_before(self.blocks)

    def ordered(self, names: tuple[str, ...]) -> "MeasuredChain":
        """The same with its stages in another order. PlanError where nothing is known of a link that this needs."""
        stages = {stage.name: stage for stage in self.stages}
        links = self.links
        if self.links_between is not None:
            links = tuple(self._link(*hop) for hop in pairwise(names))
        return replace(self, stages=tuple(stages[name] for name in names), links=links)

    def among(self, names: Collection[str]) -> "MeasuredChain":
        """The same without the stages that are not named.

        Where nothing is known of a link across one of those, what it had on both sides is passed: the least rates count.
        """
        kept = [index for index, stage in enumerate(self.stages) if stage.name in names]
        links = tuple(self._link_across(*hop) for hop in pairwise(kept))
        return replace(self, stages=tuple(self.stages[index] for index in kept), links=links)

    def with_gradient_bits(self, bits: int) -> "MeasuredChain":
        """The same with error gradients of so many bits a number; the schema has float32 ones."""
        return replace(self, gradient_bytes=at_bits(self.gradient_bytes, bits))

    def with_links(self, rates: Sequence[Rates], names: Sequence[str]) -> "MeasuredChain":
        """The same with other rates between these stages, each and the next."""
        of_hops = dict(zip(pairwise(names), rates, strict=True))
        hops = list(pairwise(stage.name for stage in self.stages))
        links = tuple(of_hops.get(hop, link) for hop, link in zip(hops, self.links, strict=True))
        between = dict(self.links_between or {}) | {hop: link for hop, link in of_hops.items() if hop not in hops}
        return replace(self, links=links, links_between=between or self.links_between)

    def with_seconds(self, name: str, seconds: Floats) -> "MeasuredChain":
        """The same with other times of one stage; see `MeasuredStage.seconds`."""
        stages = (replace(stage, seconds=seconds) if stage.name == name else stage for stage in self.stages)
        return replace(self, stages=tuple(stages))

    def _link_across(self, near: int, far: int) -> Rates:
        try:
            return self._link(self.stages[near].name, self.stages[far].name)
        except PlanError:
            passed = self.links[near:far]
            return Rates(
                min(link.uplink for link in passed),
                min(link.downlink for link in passed),
                sum(link.round_trip_seconds for link in passed),
            )

    def _link(self, near: str, far: str) -> Rates:
        names = [stage.name for stage in self.stages]
        known = dict(zip(pairwise(names), self.links, strict=True)) | dict(self.links_between or {})
        if (near, far) in known:
            return known[near, far]
        if (far, near) in known:
            return known[far, near].turned()
        raise PlanError(
            f"nothing is known of a link from {near!r} to {far!r}, which some orders need; add it to links_between"
        )


def load_chain(path: Path) -> MeasuredChain:
    """The chain in a file. PlanError when it cannot be read or holds anything wrong."""
    return parse_chain(read_json(path, "chain", PlanError), str(path))


def parse_chain(decoded: object, where: str) -> MeasuredChain:
    """The chain in a decoded JSON object; `where` begins every complaint."""
    reader = Reader(decoded, where, "chain", CHAIN_SCHEMA)
    blocks = reader.blocks()
    cuts = len(blocks) + 1
    stages = _stages(reader, cuts)
    chain = MeasuredChain(
        model=reader.text("model"),
        batch_size=reader.whole("batch_size", least=1),
        blocks=blocks,
        feature_bytes=reader.entries("feature_bytes", cuts),
        gradient_bytes=reader.entries("gradient_bytes", cuts),
        encode=reader.encode(),
        min_bits=reader.min_bits(cuts),
        stages=stages,
        links=_links(reader, len(stages)),
        links_between=_links_between(reader, {stage.name for stage in stages}),
    )
    if len(stages) > len(blocks):
        raise PlanError(
            f"{where}: there are {len(stages)} stages and {len(blocks)} blocks, and each stage must have a block at least; "
            "leave stages out"
        )
    for stage in stages:
        if np.isnan(stage.seconds[np.triu_indices(cuts, 1)]).all():
            raise PlanError(
                f"{where}: nothing was measured on stage {stage.name!r}: each of its seconds is null, so there is nothing to "
                "choose from"
            )
    return chain


def chain_to_json(chain: MeasuredChain) -> str:
    """The file's text for a chain; `parse_chain` of it gives the same chain."""
    document: dict[str, Any] = {
        "schema": CHAIN_SCHEMA,
        "model": chain.model,
        "batch_size": chain.batch_size,
        "blocks": [asdict(block) for block in chain.blocks],
        "feature_bytes": list(chain.feature_bytes),
        "gradient_bytes": list(chain.gradient_bytes),
        "encode": chain.encode and asdict(chain.encode),
        "min_bits": None if chain.min_bits is None else list(chain.min_bits),
        "stages": [
            {"name": stage.name, "seconds": [[_or_null(seconds) for seconds in row] for row in stage.seconds.tolist()]}
            for stage in chain.stages
        ],
        "links": [asdict(link) for link in chain.links],
    }
    if chain.links_between is not None:
        document["links_between"] = [
            {"from": near, "to": far, **asdict(link)} for (near, far), link in chain.links_between.items()
        ]
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _or_null(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def _stages(reader: Reader, cuts: int) -> tuple[MeasuredStage, ...]:
    values = reader.take("stages")
    if not isinstance(values, list) or not values:
        raise reader.refuse("stages", values, "a list of one stage or more")
    stages = []
    for index, value in enumerate(values):
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or "seconds" not in value:
            raise reader.refuse(
                f"stages[{index}]", value, f'an object with "name", a string, and "seconds", {cuts} lists of {cuts}'
            )
        stages.append(MeasuredStage(value["name"], _table(reader, f"stages[{index}].seconds", value["seconds"], cuts)))
    names = [stage.name for stage in stages]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"{reader.where}: two stages are called {name!r}; each must have a name of its own")
    return tuple(stages)


def _table(reader: Reader, key: str, rows: object, cuts: int) -> Floats:
    table = np.full((cuts, cuts), math.nan)
    for first, row in enumerate(reader.by_cut(key, rows, cuts)):
        for stop, value in enumerate(reader.by_cut(f"{key}[{first}]", row, cuts)):
            if value is not None:
                table[first, stop] = reader.number(
                    f"{key}[{first}][{stop}]", value, ", or null where it was not measured"
                )
    return table


def _links(reader: Reader, stages: int) -> tuple[Rates, ...]:
    values = reader.take("links")
    if not isinstance(values, list) or len(values) != stages - 1:
        raise reader.refuse(
            "links", values, f"a list of {stages - 1}, one between each two neighbours of {stages} stages"
        )
    return tuple(_rates(reader, f"links[{index}]", value) for index, value in enumerate(values))


def _links_between(reader: Reader, names: set[str]) -> dict[tuple[str, str], Rates] | None:
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
        links[near, far] = _rates(reader, f"links_between[{index}]", value)
    return links


def _rates(reader: Reader, key: str, value: Any) -> Rates:
    fields = ("uplink", "downlink", "round_trip_seconds")
    if not isinstance(value, Mapping) or not value.keys() >= set(fields):
        raise reader.refuse(key, value, f"an object with {', '.join(fields)}, rates in bit/s")
    uplink, downlink, round_trip_seconds = (reader.number(f"{key}.{field}", value[field]) for field in fields)
    try:
        return Rates(uplink, downlink, round_trip_seconds)
    except PlanError as error:
        raise PlanError(f"{reader.where}: {key}: {error}") from error
