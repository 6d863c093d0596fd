"""The way of a member out of its group: it tells its last step, does that, and ends."""

import structlog

from edge_agent.sessions.group_member import leave_after
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.step_boundary import Pause

_log = structlog.get_logger(__name__)


class GroupExit:
    """The exit of this device from its group, where an operator asks for it. Used on the event loop."""

    def __init__(self, session: OpenSession, pause: Pause) -> None:
        """pause: an operator's, which ends for the last step; it knows the shutdown."""
        self._session = session
        self._pause = pause
        self._last_step: int | None = None
        """The step that all trainers have been told."""

    @property
    def is_asked(self) -> bool:
        """Tell whether the device is to leave its group."""
        return self._pause.shutdown.leaves

    @property
    def is_under_way(self) -> bool:
        """Tell whether the trainers know a last step, after which the others go on."""
        return self._last_step is not None

    async def has_a_step_left(self, step: int) -> bool:
        """Tell whether the device still does this step, with nothing in flight before it. Raises IsthmusError.

        The first call tells all trainers that it is the last one. Nobody goes beyond it before this device has done it, so all
        of them agree on the first step without it.
        """
        if not self.is_asked:
            return False
        if self._last_step is None:
            self._pause.release()
            await leave_after(self._session, step)
            self._last_step = step
            _log.info("leaving the group", last_step=step)
        if step <= self._last_step:
            return True
        self._pause.shutdown.note_left()
        return False
