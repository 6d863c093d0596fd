"""TensorBoard: event files in `output.directory`/tensorboard/RUN."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_agent.callbacks.run_handle import RunHandle
from edge_agent.callbacks.tracked import figures_of, not_installed, settings_of
from edge_agent.training.events import BeganAgain, Ended, Prepared, RolledBack
from shared.events import Event

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Writes scalars by a SummaryWriter. Where a run goes back, a new one purges the steps that come once more."""

    def __init__(self, **kwargs: Any) -> None:
        """kwargs: of the SummaryWriter. Raises ConfigError where tensorboard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as cause:
            raise not_installed("tensorboard", cause) from cause
        self._kwargs = kwargs
        self._made = SummaryWriter
        self._folder = Path()
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event, _run: RunHandle) -> None:
        """Write the figures of an event."""
        match event:
            case Prepared(run_id, config):
                assert config.output.directory is not None, "a configuration with a tracker has one"
                self._folder = config.output.directory / "tensorboard" / run_id
                self._open(None)
                self._now.add_text("settings", f"```\n{json.dumps(settings_of(config), indent=1)}\n```")
            case RolledBack(step):
                self._open(step + 1)
            case BeganAgain():
                self._open(0)
            case Ended():
                self._now.close()
            case _ if (figures := figures_of(event)) is not None:
                step, values = figures
                for name, value in values.items():
                    self._now.add_scalar(name, value, step)

    @property
    def _now(self) -> "SummaryWriter":
        assert self._writer is not None, "a run is prepared before all else"
        return self._writer

    def _open(self, purge_step: int | None) -> None:
        """Write into another file. purge_step: figures of this step and of later ones do not count any more."""
        if self._writer is not None:
            self._writer.close()
        self._writer = self._made(str(self._folder), purge_step=purge_step, **self._kwargs)
