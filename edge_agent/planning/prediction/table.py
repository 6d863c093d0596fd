"""Latency tables: the seconds of one model's sub-models on one device, as data and as a file that others can write.

One JSON object (schema `isthmus.latency/v1`). A sub-model is a vector of 0 and 1, one a layer: contiguous blocks of a
chain where we measure, any choice of layers where others do.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from edge_agent.planning.complaint import complaint
from shared.errors import PlanError
from shared.files.json_file import read_json

SCHEMA: Literal["isthmus.latency/v1"] = "isthmus.latency/v1"
REFERENCES = 10
"""Sub-models whose times tell one device from another (paper 001)."""
MOST_LAYERS = 4096
MOST_SAMPLES = 100_000
MOST_CELLS = 5_000_000
"""Layers times samples of one table: a file of another must not take all memory."""
MOST_FILE_BYTES = 64 * 2**20
LONGEST_SECONDS = 1e6
SHORTEST_SECONDS = 1e-9
"""Beyond these a time is no measurement, and its logarithm would weigh more than all others."""

Layers = tuple[Annotated[int, Field(ge=0, le=1)], ...]


class _Part(BaseModel):
    """A section that is strict about the keys it knows. It ignores others."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class Sample(_Part):
    """The measured time of one sub-model."""

    layers: Annotated[Layers, Field(min_length=1, max_length=MOST_LAYERS)]
    """For each layer whether it runs."""
    seconds: Annotated[float, Field(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)]
    """Seconds of a step: forward, backward and update."""


class LatencyTable(_Part):
    """The times of one device."""

    schema_name: Annotated[Literal["isthmus.latency/v1"], Field(alias="schema")] = SCHEMA
    model: Annotated[str, Field(min_length=1)]
    """The measured model: `package.module:factory`, or any name that all tables of it share."""
    batch_size: PositiveInt
    device: Annotated[str, Field(min_length=1)]
    """Name of the device in printed text."""
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)]
    """L."""
    reference: tuple[int, ...]
    """Indices of the samples that are measured on every device."""
    samples: Annotated[tuple[Sample, ...], Field(max_length=MOST_SAMPLES)]
    flops: tuple[NonNegativeFloat, ...] | None = None
    """Multiplications and additions of each layer's forward pass. None if unknown."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.layers * len(self.samples) > MOST_CELLS:
            raise ValueError(f"{len(self.samples)} samples of {self.layers} layers are more than {MOST_CELLS} entries")
        for index, sample in enumerate(self.samples):
            if len(sample.layers) != self.layers:
                raise ValueError(f"samples[{index}].layers has {len(sample.layers)} entries; layers says {self.layers}")
        if self.flops is not None and len(self.flops) != self.layers:
            raise ValueError(f"flops has {len(self.flops)} entries; layers says {self.layers}")
        for index in self.reference:
            if not 0 <= index < len(self.samples):
                raise ValueError(f"reference names sample {index}; the table has samples 0 to {len(self.samples) - 1}")
        if len(set(self.reference)) < REFERENCES:
            raise ValueError(f"reference names {len(set(self.reference))} samples; {REFERENCES} are needed")
        return self


def load_table(path: Path) -> LatencyTable:
    """The table in a file. Raises PlanError when it cannot be read or holds anything wrong."""
    if path.is_file() and path.stat().st_size > MOST_FILE_BYTES:
        raise PlanError(f"{path}: the latency table has more than {MOST_FILE_BYTES} bytes")
    document = read_json(path, "latency table", PlanError)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise PlanError(f'{path}: a latency table is a JSON object whose schema is "{SCHEMA}"')
    try:
        return LatencyTable.model_validate_json(json.dumps(document))
    except ValidationError as wrong:
        raise PlanError(f"{path}: {complaint(wrong)}") from wrong


def table_to_json(table: LatencyTable) -> str:
    """The file's text for a table; `load_table` of it gives the same table."""
    return table.model_dump_json(by_alias=True, exclude_none=True) + "\n"


def check_alike(tables: dict[str, LatencyTable]) -> None:
    """Refuse tables that do not speak of the same sub-models. Raises PlanError; the keys name the tables in it."""
    (first_name, first), *others = tables.items()
    for name, table in others:
        for what in ("model", "batch_size", "layers"):
            one, other = getattr(first, what), getattr(table, what)
            if one != other:
                raise PlanError(
                    f"{name}: {what} is {json.dumps(other)}, in {first_name} it is {json.dumps(one)}; tables of one "
                    "predictor have the same"
                )


def contiguous(layers: int) -> list[tuple[int, int]]:
    """All sub-models [i, j) of a chain of so many blocks."""
    return [(first, stop) for first in range(layers) for stop in range(first + 1, layers + 1)]


def vector(first: int, stop: int, layers: int) -> Layers:
    """The sub-model [first, stop) as a table has it."""
    return (0,) * first + (1,) * (stop - first) + (0,) * (layers - stop)


def representatives(work: Sequence[float]) -> list[int]:
    """The ten of some sub-models whose work (operations or seconds) is spread evenly over the order of all (paper 001).

    Fewer than ten have all of them. Of equals the first counts as the least.
    """
    order = sorted(range(len(work)), key=work.__getitem__)
    if len(order) <= REFERENCES:
        return order
    return [order[round(place * (len(order) - 1) / (REFERENCES - 1))] for place in range(REFERENCES)]
