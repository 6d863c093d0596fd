"""The end of a run before all its steps are done: its evaluations get no better, or somebody asks it to finish."""

import structlog

from edge_agent.sessions.group_member import leave_after
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.events import Finishing
from edge_agent.training.group_exit import GroupExit
from edge_agent.training.improvement import ends_early
from edge_agent.training.statistics import Statistics
from edge_agent.training.step_boundary import Pause
from shared.events import Emit

_log = structlog.get_logger(__name__)


class EarlyEnd:
    """The last step of one session's run, which may come early. Used on the event loop, with nothing in flight."""

    def __init__(
        self, session: OpenSession, pause: Pause, group_exit: GroupExit, statistics: Statistics, emit: Emit
    ) -> None:
        """pause: an operator's, which knows the step boundary. group_exit: of this device, if it is a group's member."""
        self._session = session
        self._experiment = session.experiment
        self._pause = pause
        self._exit = group_exit
        self._statistics = statistics
        self._emit = emit
        self._configured_steps = self._experiment.steps
        """Steps of the run, unless it ends early."""
        self._first_step = 0
        """Step at which this session has begun, or gone back to."""

    async def end_if_no_better(self, step: int) -> None:
        """Make this step the last one of the run, in a group of all members, where the evaluations say so."""
        config = self._experiment.config
        if step == self._experiment.steps or not ends_early(self._statistics.history, config.training.early_stop):
            return
        if config.member is not None:
            if self._exit.is_under_way:
                return
            # No trainer does a step without this member, so nobody is further.
            await leave_after(self._session, step - 1, ends_group=True)
        self._set_steps(step)
        _log.info("the evaluations get no better; the run ends early", step=step)

    async def end_if_asked(self, step: int) -> bool:
        """Make this step the last one of the run, in a group of all members, where it is asked to finish.

        The first step is done before, despite a pause. Returns False where it is not the last one. Raises IsthmusError.
        """
        if not self._pause.boundary.is_end_requested or step == self._experiment.steps:
            return False
        if step < self._least_step:
            self._pause.release()
            return False
        if self._experiment.config.member is not None:
            if self._exit.is_under_way:
                return False
            await leave_after(self._session, step - 1, ends_group=True)
        self._set_steps(step)
        self._statistics.finished_of_steps = self._configured_steps
        self._emit(Finishing())
        _log.info("asked to finish; the run ends early", step=step)
        return True

    def begin_at(self, step: int) -> None:
        """Have the run all its steps again, of which this one comes next."""
        self._first_step = step
        self._set_steps(self._configured_steps)
        self._statistics.finished_of_steps = None

    def take_back(self) -> None:
        """Have the history of a longer run be that of one: rows and evaluations of an earlier end are none of it."""
        rows, experiment = self._statistics.history, self._experiment
        if rows and not experiment.evaluates_at(step := rows[-1].step):
            per_epoch = experiment.recipe.steps_per_epoch
            ends_epoch = 0 < experiment.recipe.boundary_from(step // per_epoch * per_epoch) == step
            if not ends_epoch or rows[-1].test_loss is not None:
                self._statistics.take_back_end(ends_epoch=ends_epoch)

    @property
    def _least_step(self) -> int:
        """The least step that may be the end.

        An earlier session of a member may have given gradients of the next K + 1 steps, so that a trainer can be further.
        """
        is_member = self._experiment.config.member is not None
        return self._first_step + self._session.placement.staleness + 1 if is_member else 1

    def _set_steps(self, steps: int) -> None:
        self._experiment.steps = self._statistics.total_steps = steps
