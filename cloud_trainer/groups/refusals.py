"""The refusals of a group: what it says no to, without knowing by which status of an RPC its service tells that."""

from shared.errors import RefusedError


class GroupRefusal(RefusedError):
    """A call of a member that its group refuses. `retry_after_seconds`: when it may be granted; None where that is unknown."""

    def __init__(self, sentence: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_seconds = retry_after_seconds


class NotNowError(GroupRefusal):
    """A call that may be granted to who asks again, there or at the place where the group is by then."""


class TooEarlyError(GroupRefusal):
    """A call of a member that has not done what comes before it."""


class SeatLostError(GroupRefusal):
    """A call of a session whose rank is another session's by now."""


class RankOwnedError(GroupRefusal):
    """A rank that belongs to another subject."""
