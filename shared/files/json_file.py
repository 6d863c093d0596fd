"""A JSON file that a user names."""

import json
from pathlib import Path

from shared.errors import IsthmusError


def read_json(path: Path, what: str, error: type[IsthmusError]) -> object:
    """Read and decode the file. Raises `error` when it cannot be read or is not JSON; `what` names it in the sentence."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise error(f"{path}: the {what} cannot be read: {cause.strerror}") from cause
    except (ValueError, RecursionError) as cause:
        raise error(f"{path}: the {what} is not JSON: {cause}") from cause
