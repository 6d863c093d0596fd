"""The record of a session: what it was opened with, and what this device knows of it. One JSON document a session."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, JsonValue, SecretStr, model_validator

from edge_agent.config import EdgeConfig
from edge_agent.experiment.building import Experiment
from shared.config import Section


class SessionRecord(Section):
    """One session, as `edge-agent sessions` shows it."""

    session_id: str
    config: dict[str, JsonValue]
    """The whole configuration that the session goes on with, without secrets."""
    samples: int
    """How many samples it trains on."""
    schedule_steps: int
    """The steps that the schedule of the learning rate counts with, on both sides. They never change."""
    start_digest: str | None
    """The digest of the file of the first weights (training.start_from)."""
    trainer: str
    model: str
    total_steps: int
    began: str
    """When it was opened, as ISO 8601."""
    shared: tuple[int, int] | None = None
    """The newest checkpoint that both sides are known to have: lineage and step."""

    @property
    def configuration(self) -> EdgeConfig:
        """`config` as a configuration."""
        return EdgeConfig.model_validate_json(json.dumps(self.config))

    @model_validator(mode="after")
    def _config_is_valid(self) -> Self:
        EdgeConfig.model_validate_json(json.dumps(self.config))
        return self

    @classmethod
    def begun_now(cls, session_id: str, experiment: Experiment) -> Self:
        """The record of a session that was just opened."""
        config = experiment.config
        return cls(
            session_id=session_id,
            config=recorded(config),
            samples=experiment.samples,
            schedule_steps=experiment.recipe.total_steps,
            start_digest=experiment.start_digest,
            trainer=config.only_trainer.address,
            model=config.model.factory,
            total_steps=experiment.steps,
            began=datetime.now(UTC).isoformat(timespec="microseconds"),
        )


def recorded(value: Any) -> Any:
    """A configuration as JSON that means the same in another working directory. Secrets are left out."""
    if isinstance(value, BaseModel):
        return {name: recorded(field) for name, field in value if not isinstance(field, SecretStr)}
    if isinstance(value, Path):
        return str(value.absolute())
    return [recorded(item) for item in value] if isinstance(value, tuple) else value
