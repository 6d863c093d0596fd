"""How often a run may fail before it ends, and how long it waits before it tries again."""

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
"""So many refusals without progress between them end the run, and so many streams that ended otherwise than by a lost link."""


class Attempts:
    """Counts the failures that may end a run, and waits longer with every loss at one step.

    A lost link is no failure. A step that a trainer refuses is tried once more, because damage on the way may have caused the
    refusal; a second refusal ends the run, because the trainer would refuse the step each time. Failures count until the run
    has got beyond all steps that were under way at the first one: after going back to a checkpoint it may take many steps to
    come to the step that fails.
    """

    def __init__(self) -> None:
        self._beyond: int | None = None
        """The step that every worker has to have done before the failures are forgotten; None while nothing has failed."""
        self._refusals = self._failures = 0
        self._spacing = Spacing()

    def count(self, failure: IsthmusError, done_step: int | None, begun_step: int) -> None:
        """Count a failure. Raises `failure` where no attempt may follow.

        done_step: the first that not every worker has done; None with no state in memory. begun_step: the one that begins next.
        """
        if not isinstance(failure, ProtocolError) and not is_refusal(failure):
            return
        if done_step is not None and self._beyond is not None and done_step >= self._beyond:
            self._beyond, self._refusals, self._failures = None, 0, 0
        if done_step is not None and self._beyond is None:
            self._beyond = max(begun_step, done_step + 1)  # with nothing under way, one step has to be done
        self._failures += 1
        self._refusals += is_refusal(failure)
        if self._refusals >= REFUSALS or self._failures >= FAILURES:
            raise failure

    async def wait(self, done_step: int | None) -> None:
        """Wait before the next attempt. The first attempt at a step does not wait."""
        await self._spacing.wait(done_step)


def is_refusal(failure: IsthmusError) -> bool:
    """Whether a trainer has understood what came and refused it, as it would again."""
    return isinstance(failure, RefusedError) and not isinstance(failure, SessionLostError)


def can_be_mended(failure: IsthmusError) -> bool:
    """Whether the session may go on after `failure`, once all trainers are joined again.

    A trainer that cannot be reached has been tried for as long as the user allows when this is asked.
    """
    passing = isinstance(failure, ProtocolError | SessionLostError) or is_refusal(failure)
    return passing and not isinstance(failure, FencedError | GoneError)
