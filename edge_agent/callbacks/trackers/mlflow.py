"""MLflow: a run of an experiment, at a server or in a database of one file."""

import os
import time

from edge_agent.callbacks.run_handle import RunHandle
from edge_agent.callbacks.tracked import figures_of, not_installed, settings_of
from edge_agent.training.events import Ended, Prepared
from shared.events import Event

_TAG = "isthmus.run"
_MOST_CHARACTERS = 500
"""Most characters of a setting that every version of MLflow takes."""


class MLflow:
    """Keeps figures by an MlflowClient. A run that is resumed goes on in the same run of MLflow."""

    def __init__(self, tracking_uri: str | None = None, experiment: str = "isthmus") -> None:
        """tracking_uri: of a server or a database; None is a file of SQLite. Raises ConfigError where MLflow is not
        installed."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers of each run
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError as cause:
            raise not_installed("mlflow", cause) from cause
        self._made, self._metric, self._param = MlflowClient, Metric, Param
        self._uri = tracking_uri
        self._experiment = experiment
        self._run = ""

    def __call__(self, event: Event, _run: RunHandle) -> None:
        """Keep the figures of an event."""
        match event:
            case Prepared():
                self._begin(event)
            case Ended(summary):
                self._client.set_terminated(self._run, "FAILED" if summary is None else "FINISHED")
            case _ if (figures := figures_of(event)) is not None:
                now, (step, values) = int(time.time() * 1000), figures
                metrics = [self._metric(name, value, now, step) for name, value in values.items()]
                self._client.log_batch(self._run, metrics=metrics)

    def _begin(self, event: Prepared) -> None:
        folder = event.config.output.directory
        assert folder is not None, "a configuration with a tracker has one"
        self._client = self._made(tracking_uri=self._uri or f"sqlite:///{folder.absolute() / 'mlflow.db'}")
        if (known := self._client.get_experiment_by_name(self._experiment)) is None:
            artifacts = None if self._uri else (folder.absolute() / "mlflow").as_uri()
            experiment = self._client.create_experiment(self._experiment, artifact_location=artifacts)
        else:
            experiment = known.experiment_id
        if found := self._client.search_runs([experiment], f"tags.`{_TAG}` = '{event.run_id}'"):
            self._run = found[0].info.run_id
            self._client.update_run(self._run, "RUNNING")
            return
        self._run = self._client.create_run(experiment, tags={_TAG: event.run_id}, run_name=event.run_id).info.run_id
        settings = settings_of(event.config).items()
        self._client.log_batch(self._run, params=[self._param(key, text[:_MOST_CHARACTERS]) for key, text in settings])
