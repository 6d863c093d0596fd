"""Weights & Biases: a run in `output.directory`/wandb, offline unless `mode` says otherwise."""

import os
from typing import Any

from edge_agent.callbacks.run_handle import RunHandle
from edge_agent.callbacks.tracked import figures_of, not_installed, settings_of
from edge_agent.training.events import Ended, Prepared
from shared.events import Event


class WeightsAndBiases:
    """Keeps figures by `wandb.init`, over their step. A run that is resumed goes on under the same id."""

    def __init__(self, **kwargs: Any) -> None:
        """kwargs: of `wandb.init`. Raises ConfigError where wandb is not installed."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would tell its makers of failures
        try:
            import wandb
        except ImportError as cause:
            raise not_installed("wandb", cause) from cause
        self._wandb = wandb
        quiet = {"console": "off", "silent": True}  # the terminal is the run's
        self._kwargs = {"mode": "offline", "project": "isthmus", "resume": "allow", "settings": quiet, **kwargs}

    def __call__(self, event: Event, _run: RunHandle) -> None:
        """Keep the figures of an event."""
        match event:
            case Prepared(run_id, config):
                assert config.output.directory is not None, "a configuration with a tracker has one"
                config.output.directory.mkdir(parents=True, exist_ok=True)  # otherwise it takes /tmp
                given = {
                    "dir": str(config.output.directory),
                    "id": run_id,
                    "config": settings_of(config),
                    **self._kwargs,
                }
                self._run = self._wandb.init(**given)
                self._run.define_metric("*", step_metric="step")  # a run may go back; its own steps may not
            case Ended(summary):
                self._run.finish(exit_code=0 if summary is not None else 1)
            case _ if (figures := figures_of(event)) is not None:
                step, values = figures
                self._run.log({"step": step, **values})
