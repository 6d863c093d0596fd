"""Data rates and times as people write them: "10mbit", "1.5 gbit/s", "800kbit"; "40ms", "0.2 s".

Decimal, as for links everywhere: 1 mbit is 10^6 bit/s, and a byte is 8 bits.
"""

import math
import re

from shared.errors import PlanError

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_UNITS = {"bit": 1.0, "byte": 8.0}
_RATE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmg]?)(bit|byte)(?:/s)?\s*", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)\s*", re.ASCII | re.IGNORECASE)


def parse_seconds(text: str, name: str) -> float:
    """Seconds of a time with its unit; PlanError, naming `name`, for anything else."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise PlanError(f'{name} is "{text}"; it must be a number of 0 or more with its unit, as in 40ms or 0.2s')
    number, unit = match.groups()
    seconds = float(number) * (1e-3 if unit.lower() == "ms" else 1.0)
    if not seconds < math.inf:
        raise PlanError(f'{name} is "{text}"; it must be finite')
    return seconds


def parse_rate(text: str, name: str = "rate") -> float:
    """Bits per second of a rate with its unit; PlanError, naming `name`, for anything else and for a rate of 0 or nearly."""
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
