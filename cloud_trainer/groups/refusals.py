"""The refusals of a group that end a call by a status of their own. Which one that is, the groups' service knows."""

from shared.errors import RefusedError


class NotNowError(RefusedError):
    """A call that may be granted to who asks again, there or where the group is by then.

    retry_after_seconds: time until then; None where it is not known.
    """

    def __init__(self, sentence: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_seconds = retry_after_seconds


class SeatLostError(RefusedError):
    """A call of a session whose rank is another session's by now."""


class RankOwnedError(RefusedError):
    """A rank that belongs to another subject."""


def elsewhere(group: str, why: str) -> NotNowError:
    """Build the refusal for a member that has to ask again where its group goes on."""
    return NotNowError(f"group {group!r} is elsewhere at this trainer: {why}")
