"""Keyword arguments that a configuration gives to a function or class, and that travel to a peer as JSON."""

import json
import math
from collections.abc import Mapping

from pydantic import JsonValue

MOST_ARGUMENT_CHARACTERS = 32 * 1024
"""Most characters of the JSON of one call's arguments: weights of 4,000 classes in single precision have room."""


def check_arguments(what: str, arguments: Mapping[str, JsonValue]) -> None:
    """Refuse arguments that are too long, or that have a number that is not finite, as JSON of Python may. Raises ValueError.

    what: whose they are, as a sentence says it.
    """
    if not arguments:
        return
    if (length := len(json.dumps(arguments))) > MOST_ARGUMENT_CHARACTERS:
        raise ValueError(
            f"the arguments of {what} are {length} characters of JSON; at most {MOST_ARGUMENT_CHARACTERS} are taken"
        )
    for key, value in arguments.items():
        if not _is_finite(value):
            raise ValueError(f"{key} of {what} has a number that is not finite")


def _is_finite(value: JsonValue) -> bool:
    if isinstance(value, list | dict):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)
