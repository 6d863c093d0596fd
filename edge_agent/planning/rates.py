"""Data rates and times, of a link and as people write them: "10mbit", "1.5 gbit/s", "800kbit"; "40ms", "0.2 s".

Decimal, as for links everywhere: 1 mbit is 10^6 bit/s, and a byte is 8 bits.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.errors import PlanError

LEAST_RATE = 1000.0
"""Bits per second assumed for a dead link, so that steps end, and layouts can still be told apart."""

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_UNITS = {"bit": 1.0, "byte": 8.0}
_RATE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmg]?)(bit|byte)(?:/s)?\s*", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Rates:
    """The rates of a link, in bits per second each way, and its round trip.

    PlanError for a rate that is not above 0 and finite, and for a round trip that is below 0 or not finite.
    """

    uplink: float
    downlink: float
    round_trip_seconds: float = 0.0
    """Seconds of a byte up and its answer down, whatever the rates."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.round_trip_seconds < math.inf:
            raise PlanError(f"the round trip is {self.round_trip_seconds} s; it must be 0 or more and finite")
        for name, rate in (("uplink", self.uplink), ("downlink", self.downlink)):
            if not 0.0 < rate < math.inf:
                raise PlanError(f"the {name} rate is {rate} bit/s; it must be above 0 and finite")

    def turned(self) -> "Rates":
        """Return the same link as its other end counts it."""
        return replace(self, uplink=self.downlink, downlink=self.uplink)


def in_series(links: Sequence[Rates]) -> Rates:
    """Return a path through several links as one: the slowest link counts each way, and all round trips."""
    return Rates(
        min(link.uplink for link in links),
        min(link.downlink for link in links),
        sum(link.round_trip_seconds for link in links),
    )


def parse_seconds(text: str, name: str) -> float:
    """Read the seconds of a time with its unit. PlanError, naming `name`, for other text."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise PlanError(f'{name} is "{text}"; it must be a number of 0 or more with its unit, as in 40ms or 0.2s')
    number, unit = match.groups()
    seconds = float(number) * (1e-3 if unit.lower() == "ms" else 1.0)
    if not seconds < math.inf:
        raise PlanError(f'{name} is "{text}"; it must be finite')
    return seconds


def parse_rate(text: str, name: str = "rate") -> float:
    """Read the bits per second of a rate with its unit. PlanError, naming `name`, for other text and for a rate of 0 or
    nearly."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise PlanError(
            f'{name} is "{text}"; it must be a number with its unit, as in 800kbit, 10mbit, 1.5gbit or 2mbyte (per second)'
        )
    number, prefix, unit = match.groups()
    bits_per_second = float(number) * _PREFIXES[prefix.lower()] * _UNITS[unit.lower()]
    if not 1.0 <= bits_per_second < math.inf:
        raise PlanError(
            f'{name} is "{text}"; it must be at least 1 bit/s: nothing can be planned over a link that carries nothing'
        )
    return bits_per_second
