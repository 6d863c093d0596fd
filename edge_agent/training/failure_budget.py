"""The failures that a run survives, and the waits before its next attempts."""

from shared.client.retry import Spacing
from shared.errors import (
    FencedError,
    GoneError,
    IsthmusError,
    ProtocolError,
    RefusedError,
    SessionLostError,
)

REFUSALS, FAILURES = 2, 4
"""Limits of a run: the refusals without progress between them, and the streams that ended otherwise than by a lost link."""


class FailureBudget:
    """A counter of the failures that may end a run. It also waits longer after every failure at one step.

    A lost link is no failure. A step that a trainer refuses is tried once more, because damage on the way may have
    caused the refusal. A second refusal ends the run, because the trainer would refuse the step each time. Failures
    count until the run has passed all steps that were under way at the first one: after a return to a checkpoint, it
    may take many steps to reach the failing one.
    """

    def __init__(self) -> None:
        self._beyond: int | None = None
        """Step that every worker must have done before failures are forgotten; None without a failure."""
        self._refusals = self._failures = 0
        self._spacing = Spacing()

    def count(self, failure: IsthmusError, done_step: int | None, begun_step: int) -> None:
        """Count a failure. Raises `failure` if no attempt may follow.

        done_step: the first that not every worker has done; None with no state in memory. begun_step: the next one to begin.
        """
        if not isinstance(failure, ProtocolError) and not is_refusal(failure):
            return
        if done_step is not None and self._beyond is not None and done_step >= self._beyond:
            self._beyond, self._refusals, self._failures = None, 0, 0
        if done_step is not None and self._beyond is None:
            self._beyond = max(begun_step, done_step + 1)  # With nothing under way, one step has to be done.
        self._failures += 1
        self._refusals += is_refusal(failure)
        if self._refusals >= REFUSALS or self._failures >= FAILURES:
            raise failure

    async def wait(self, done_step: int | None) -> None:
        """Wait before the next attempt. The first attempt at a step does not wait."""
        await self._spacing.wait(done_step)


def is_refusal(failure: IsthmusError) -> bool:
    """Tell whether a trainer has understood a message and refused it. It would refuse it again."""
    return isinstance(failure, RefusedError) and not isinstance(failure, SessionLostError)


def can_be_mended(failure: IsthmusError) -> bool:
    """Tell whether the session may continue after `failure`, once all trainers are joined again.

    A trainer that cannot be reached has by then been tried for as long as the user allows.
    """
    passing = isinstance(failure, ProtocolError | SessionLostError) or is_refusal(failure)
    return passing and not isinstance(failure, FencedError | GoneError)
