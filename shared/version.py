"""The contract that the two sides must agree on before they talk."""

import re

PROTOCOL_VERSION = 31
"""One higher with every change of the contract after which an edge or a trainer from before it would be misunderstood, or would
misunderstand (docs/architecture.md, "The contract")."""

NO_VERSION = 0
"""A version that nobody speaks: a peer that names it opens nothing, and is told the version in the refusal."""
NO_SESSION = "doctor"
"""An id that no session has, for a caller who only wants to know whether the trainer would let it in."""

_SPOKEN = re.compile(r"this trainer speaks (\d{1,9})\b", re.ASCII)


def version_refusal(version: int, own: int) -> str:
    """Return the sentence with which a trainer refuses a peer of another version than its own; `spoken_version` reads it."""
    return f"the caller speaks protocol version {version}; this trainer speaks {own}"


def spoken_version(refusal: str) -> int | None:
    """Return the version that a trainer says it speaks; None where a sentence says none."""
    found = _SPOKEN.search(refusal)
    return None if found is None else int(found[1])
