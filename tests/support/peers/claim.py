"""A claim of a peer at its worst."""

from collections.abc import Callable
from dataclasses import dataclass

LARGEST = 2**31 - 1
MOST_MESSAGE_BYTES = 8 * 1024 * 1024 - 4096
"""Size of the largest payload in a message that a trainer takes."""


@dataclass(frozen=True)
class Claim:
    """One call of `method` that says something at its worst, about a session that is there and was joined with term 1."""

    method: str
    what: str
    messages: Callable[[str], list[bytes]]
    without_blocks: bool = False
    """True if the trainer has no block of that session."""

    @property
    def name(self) -> str:
        """As it is reported."""
        return f"{self.method}: {self.what}"
