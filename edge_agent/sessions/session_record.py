"""The record of a session: its opening, and this device's knowledge of it. One JSON document a session."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, Field, JsonValue, SecretStr, model_validator

from edge_agent.config import EdgeConfig
from shared.client.config import SYSTEM
from shared.config import Section
from shared.version import NO_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from edge_agent.experiment.workload import Workload  # It imports torch, and most commands only read records.


class SessionRecord(Section):
    """One session, as `edge-agent sessions` shows it."""

    session_id: str
    config: dict[str, JsonValue]
    """The whole configuration under which the session continues, without secrets."""
    samples: int
    """Number of samples that it trains on."""
    schedule_steps: int
    """Steps of the learning rate's schedule, on both sides. They never change."""
    start_digest: str | None
    """Digest of the file of the first weights (training.start_from)."""
    trainer: str
    """Address of the trainer, or the addresses of all of them."""
    trainer_sessions: dict[str, str] = Field(default={})
    """Ids that the trainers have given the session, by name: its members now."""
    model: str
    total_steps: int
    began: str
    """Time of its opening, as ISO 8601."""
    protocol_version: int = NO_VERSION
    """Protocol of the agent that began it; `NO_VERSION` in a record from before it was noted."""
    left_out: tuple[str, ...] = ()
    """Trainers without which the session continues, because they were away for too long."""
    shared: tuple[int, int] | None = None
    """Newest checkpoint that both sides are known to have: lineage and step."""
    is_finished: bool = False
    """True if its run has ended, and its last checkpoint is kept for a longer one."""

    @property
    def configuration(self) -> EdgeConfig:
        """Return `config` as a configuration."""
        return EdgeConfig.model_validate_json(json.dumps(self.config))

    @model_validator(mode="after")
    def _config_is_valid(self) -> Self:
        EdgeConfig.model_validate_json(json.dumps(self.config))
        return self

    @classmethod
    def begun_now(
        cls, session_id: str, experiment: "Workload", trainer_sessions: Mapping[str, str] | None = None
    ) -> Self:
        """Record a session that was just opened. trainer_sessions: see the field."""
        config = experiment.config
        return cls(
            session_id=session_id,
            config=recorded(config),
            samples=experiment.samples,
            schedule_steps=experiment.recipe.total_steps,
            start_digest=experiment.start_digest,
            trainer=trainer_addresses(config),
            trainer_sessions=dict(trainer_sessions or {}),
            model=config.model.factory,
            total_steps=experiment.steps,
            began=datetime.now(UTC).isoformat(timespec="microseconds"),
            protocol_version=PROTOCOL_VERSION,
        )


def trainer_addresses(config: EdgeConfig) -> str:
    """List the addresses of all configured trainers, as a record and a status show them."""
    return ", ".join(trainer.address for trainer in config.all_trainers)


def recorded(value: Any) -> Any:
    """Write a configuration as JSON that means the same in another working directory. Secrets are left out."""
    if isinstance(value, BaseModel):
        return {name: recorded(field) for name, field in value if not isinstance(field, SecretStr)}
    if isinstance(value, Path):
        return str(value if value == SYSTEM else value.absolute())
    return [recorded(item) for item in value] if isinstance(value, tuple) else value
