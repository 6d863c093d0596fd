"""Keeps the history of a run as it goes, in its statistics and in `history.csv`: a reader of its events."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.events import BeganAgain, Ended, Evaluated, Finishing, RolledBack, RowAdded, SessionOpened
from edge_agent.training.history import HistoryFile, HistoryRow
from edge_agent.training.improvement import rate_drops
from edge_agent.training.statistics import Statistics
from edge_agent.training.step_figures import StepFigure
from shared.concurrency.threads import WorkerThread
from shared.events import Events
from shared.events.worker import Computed
from shared.placement import Deployment
from shared.registry import codec_bits
from shared.training.schedule import learning_rate


class HistoryKeeper:
    """Adds the rows of a run, and takes away those of steps that are done once more. Used on the event loop.

    The rows are in each checkpoint, with the totals, so those in the file are only shown: whatever they are after a
    death, they are written again. A member of a group has those of the file alone, and of epochs that are not in it, because
    steps did not wait for its row, by the figures of their steps.
    """

    def __init__(self, statistics: Statistics, directory: Path | None, events: Events) -> None:
        """directory: of the results; without one there is no file."""
        self._statistics = statistics
        self._directory = directory
        self._file = None if directory is None else HistoryFile(directory)
        self._disk: WorkerThread | None = None
        """The thread that writes the file; None before the first session."""
        self._emit = events.emit
        self._experiment: Experiment | None = None
        self.next_step = 0
        """Steps after which the current epoch ends, at a boundary; the last steps of the run end it too."""
        self._may_be_back = False
        """True until a member of a group has begun in this process: it may have rows of an earlier one."""
        events.subscribe(SessionOpened, lambda event: self._begin(event.run.session))
        events.subscribe(Computed, self._note_computed)
        events.subscribe(Evaluated, self._add)
        events.subscribe(Finishing, lambda _event: self._end())
        events.subscribe(RolledBack, lambda event: self._go_back(event.step))
        events.subscribe(BeganAgain, lambda _event: self._go_back(0))
        events.subscribe(Ended, lambda _event: self._statistics.of_steps.end())

    def note_step(self, step: int, loss: float, samples: int) -> None:
        """Note the figures of a step for a member of a group that comes back to one between two rows."""
        if not self._statistics.of_steps.is_kept:
            return
        assert self._experiment is not None, "figures are kept since its session is open"
        skipping = self._experiment.loader.skipping
        skipped = 0 if skipping is None else skipping.by_step.get(step, 0)
        self._statistics.of_steps.note(step, StepFigure(loss, samples, skipped))

    def _note_computed(self, event: Computed) -> None:
        """Note a loss before the gradients of its step leave: should this process be killed, the others may go on with them."""
        if event.loss is not None:
            self.note_step(event.step, event.loss.loss, event.loss.samples)

    def end_epoch(self) -> None:
        """Add the row of an epoch; if an evaluation follows, its row is that of the epoch."""
        assert self._experiment is not None, "steps follow the opening of the session"
        step = self._statistics.steps
        self._look_ahead(step)
        if not self._experiment.evaluates_at(step):
            self._add(None)

    def _end(self) -> None:
        """Add the row of an early end, where it has none; if an evaluation follows, its row is that of the end."""
        assert self._experiment is not None, "steps follow the opening of the session"
        rows, step = self._statistics.history, self._statistics.steps
        if not self._experiment.evaluates_at(step) and not (rows and rows[-1].step == step):
            self._add(None)

    def _begin(self, session: OpenSession) -> None:
        if self._experiment is None and session.experiment.config.member is not None:
            self._may_be_back = True
            self._statistics.of_steps.keep(self._directory)
        self._experiment, self._disk = session.experiment, session.threads.disk
        self._look_ahead(0)

    def _look_ahead(self, step: int) -> None:
        assert self._experiment is not None, "a session is open"
        recipe = self._experiment.recipe
        epoch_end = (step // recipe.steps_per_epoch + 1) * recipe.steps_per_epoch
        self.next_step = min(recipe.boundary_from(epoch_end), self._experiment.steps)

    def _add(self, found: Evaluated | None) -> None:
        """found: by an evaluation at this step; None without one."""
        statistics, experiment = self._statistics, self._experiment
        assert experiment is not None, "a session is open"
        seconds, step = statistics.seconds, statistics.steps
        tested: dict[str, Any] = dict.fromkeys(("test_loss", "accuracy"))
        if found is not None:
            tested = {"test_loss": found.loss, "accuracy": found.accuracy, "metrics": dict(found.metrics)}
        if (
            statistics.history and statistics.history[-1].step == step
        ):  # an epoch's, before more evaluations were asked for
            statistics.history[-1] = statistics.history[-1]._replace(**tested)
            self._show()
            self._emit(RowAdded(statistics.history[-1]))
            return
        before = statistics.history[-1] if statistics.history else None
        spent = seconds - (before.seconds if before is not None else 0.0)
        samples = statistics.samples - (before.samples if before is not None else 0)
        row = self._row(
            step,
            statistics.deployment,
            experiment.held.rate_drops,
            samples=statistics.samples,
            skipped=statistics.skipped,
            seconds=round(seconds, 3),
            bytes_up=statistics.bytes_up,
            bytes_down=statistics.bytes_down,
            samples_per_second=round(samples / spent, 1) if spent > 0 else 0.0,
            **tested,
        )
        statistics.add_row(row)
        self._show()
        self._emit(RowAdded(statistics.history[-1]))

    def _row(self, step: int, deployment: Deployment, drops: int, **figures: Any) -> HistoryRow:
        """Return the row of a step but for its loss. drops: see `learning_rate`."""
        experiment = self._experiment
        assert experiment is not None, "a session is open"
        given: dict[str, Any] = {"train_loss": None, "test_loss": None, "accuracy": None} | figures
        return HistoryRow(
            step=step,
            epoch=experiment.recipe.epoch_of(step),
            learning_rate=learning_rate(experiment.recipe, max(step - 1, 0), drops=drops),
            edge_blocks=deployment.edge_blocks,
            staleness=deployment.staleness,
            bits=codec_bits(deployment.codec),
            **given,
        )

    def _with_lost(self, rows: Iterable[HistoryRow], step: int) -> list[HistoryRow]:
        """Return these rows up to a step, and those of epochs without an evaluation that a kill has kept out of the file."""
        assert self._experiment is not None, "a member is back in its session"
        experiment, statistics = self._experiment, self._statistics
        found = [row for row in rows if row.step <= step]
        self._look_ahead(found[-1].step if found else 0)
        while self.next_step <= step < experiment.steps and not experiment.evaluates_at(self.next_step):
            if not list(statistics.of_steps.between(self.next_step - 1, self.next_step)):  # the others did it alone
                break
            totals = statistics.totals_at(self.next_step, found)
            figures = {
                name: totals.get(name, 0) for name in ("samples", "skipped", "seconds", "bytes_up", "bytes_down")
            }
            loss = totals["loss_sum"] / totals["losses"]
            deployment = experiment.deployment_of(experiment.scheduled_at(self.next_step - 1, experiment.placement))
            drops = rate_drops(found, experiment.recipe.schedule)
            found.append(
                self._row(self.next_step, deployment, drops, train_loss=loss, samples_per_second=0.0, **figures)
            )
            self._look_ahead(self.next_step)
        return found

    def _go_back(self, step: int) -> None:
        """Take away the rows of steps that come once more. A member of a group that is back has those of its file before."""
        statistics = self._statistics
        if self._may_be_back and self._file is not None:
            statistics.go_on(statistics.totals_at(step, self._with_lost(self._file.unfinished(), step)))
        self._may_be_back = False
        statistics.of_steps.forget_from(step)
        rows = statistics.history
        if self._experiment is not None:
            self._look_ahead(step)
        statistics.history = [row for row in rows if row.step <= step]
        if rows:
            self._show()

    def _show(self) -> None:
        """Have the file hold all rows, beside the event loop, but for that of a member that has come after the last step: a
        whole result may be there."""
        rows, experiment = list(self._statistics.history), self._experiment
        comes_after_the_end = (
            bool(rows) and experiment is not None and rows[-1].step == experiment.steps and not rows[-1].samples
        )
        if self._file is not None and self._disk is not None and not comes_after_the_end:
            self._disk.send(partial(self._file.hold, rows))
