"""Checked values of the JSON files of planning. Every refusal is one sentence that names file and key.

It knows what such files have in common, but not the content of a whole file.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from edge_agent.planning.measurements import FLOAT32_BITS, Entries, Floats, LinearSeconds, ProfiledBlock, is_bit_width
from edge_agent.planning.profile.profile import no_times
from shared.errors import PlanError


def shown(value: object) -> str:
    """Return a value for a sentence: as JSON would show it, cut short."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Reader:
    """A reader of checked values in the decoded object. Every refusal names file and key."""

    def __init__(self, decoded: Mapping[str, Any], where: str, what: str, schema: str) -> None:
        """Read values of `decoded`. what: the name of such a file in a sentence. where: the beginning of every refusal."""
        self.mapping = decoded
        self.where = where
        self._described = f"a {what} of schema {schema}"

    def refuse(self, key: str, value: object, right: str) -> PlanError:
        """Build the refusal of a value."""
        return PlanError(f"{self.where}: {key} is {shown(value)}; it must be {right}")

    def take(self, key: str) -> Any:
        """Return the value of a key that must be there."""
        if key not in self.mapping:
            raise PlanError(f"{self.where}: {key} is missing; {self._described} has it")
        return self.mapping[key]

    def text(self, key: str) -> str:
        """Read a string."""
        value = self.take(key)
        if not isinstance(value, str):
            raise self.refuse(key, value, "a string")
        return value

    def whole(self, key: str, least: int) -> int:
        """Read a whole number."""
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.refuse(key, value, f"a whole number of {least} or more")
        return value

    def number(self, key: str, value: object, or_null: str = "") -> float:
        """Read a finite number of 0 or more, whole if the file has it whole."""
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
        """Read a number, or None if it was not measured."""
        value = self.mapping.get(key)
        return None if value is None else self.number(key, value, ", or null where it was not measured")

    def listed(self, key: str, length: int) -> list[Any]:
        """Read a list of one entry a cut."""
        return self.by_cut(key, self.take(key), length)

    def by_cut(self, key: str, values: object, length: int) -> list[Any]:
        """Read the same from a nested value."""
        if not isinstance(values, list):
            raise self.refuse(key, values, f"a list of {length} entries")
        if len(values) != length:
            raise PlanError(
                f"{self.where}: {key} has {len(values)} entries; with {length - 1} blocks it must have {length}, one a cut"
            )
        return values

    def entries(self, key: str, length: int) -> Entries:
        """Read one number a cut, None if not measured."""
        return tuple(
            None if value is None else self.number(f"{key}[{cut}]", value, ", or null where it was not measured")
            for cut, value in enumerate(self.listed(key, length))
        )

    def optional_entries(self, key: str, length: int) -> Entries | None:
        """Read the same, or None as a whole."""
        return None if self.mapping.get(key) is None else self.entries(key, length)

    def blocks(self) -> tuple[ProfiledBlock, ...]:
        """Read the blocks of the model, one or more."""
        values = self.take("blocks")
        if not isinstance(values, list) or not values:
            raise self.refuse("blocks", values, "a list of one block or more")
        return tuple(self._block(f"blocks[{index}]", value) for index, value in enumerate(values))

    def _block(self, key: str, value: object) -> ProfiledBlock:
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or "bytes" not in value:
            raise self.refuse(key, value, 'an object with "name", a string, and "bytes", a number')
        trained = value.get("parameter_bytes")
        return ProfiledBlock(
            value["name"],
            self.number(f"{key}.bytes", value["bytes"]),
            None
            if trained is None
            else self.number(f"{key}.parameter_bytes", trained, ", or null where it is unknown"),
        )

    def encode(self) -> LinearSeconds | None:
        """Read the time of encoding, None if it was not measured."""
        return None if self.take("encode") is None else LinearSeconds(*self.line("encode"))

    def line(self, key: str) -> tuple[float, float]:
        """Read seconds per byte, and seconds."""
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
        """Read the fewest bits at each cut; None as a whole without a calibration."""
        if self.take("min_bits") is None:
            return None
        values = self.listed("min_bits", length)
        for cut, value in enumerate(values):
            if value is not None and not is_bit_width(value):
                allowed = f"an integer of 1 to {FLOAT32_BITS}, or null where it was not measured"
                raise self.refuse(f"min_bits[{cut}]", value, allowed)
        return tuple(values)

    def table(self, key: str, rows: object, cuts: int) -> Floats:
        """Read the seconds of the blocks [i, j) at [i, j], NaN if they were not measured. Shape (cuts, cuts)."""
        table = no_times(cuts - 1)
        for first, row in enumerate(self.by_cut(key, rows, cuts)):
            for stop, value in enumerate(self.by_cut(f"{key}[{first}]", row, cuts)):
                if value is not None:
                    table[first, stop] = self.number(
                        f"{key}[{first}][{stop}]", value, ", or null where it was not measured"
                    )
        return table

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse two workers of one name."""
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"{self.where}: two stages are called {name!r}; each must have a name of its own")
