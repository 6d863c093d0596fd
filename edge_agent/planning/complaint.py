"""Sentences for what is wrong with a file of planning whose types pydantic checks."""

import json

from pydantic import ValidationError

_SHOWN_CHARACTERS = 60


def complaint(wrong: ValidationError) -> str:
    """Return the first thing that is wrong, with its key as the file has it."""
    first = wrong.errors(include_url=False)[0]
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{shown(step)[1:-1]}" for step in first["loc"]).lstrip(
        "."
    )
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"there is no key {key}"
    message = first["msg"].removeprefix("Value error, ").replace("Input should ", "it must ")
    return f"{key} is {shown(first['input'])}; {message[0].lower()}{message[1:]}" if key else message


def shown(value: object) -> str:
    """Return a value for a sentence: as JSON would show it, cut short."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
