"""The agent's configuration for its commands: it is imported when a command reads it, because no --help needs it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus_entry_points import importing

if TYPE_CHECKING:
    from edge_agent.config import EdgeConfig


def edge_config() -> "type[EdgeConfig]":
    """Import the class of the configuration."""
    with importing("edge-agent"):
        from edge_agent.config import EdgeConfig
    return EdgeConfig


def load_edge_config(
    path: Path | None,
    overrides: Sequence[str] | None,
    environ: Mapping[str, str] = os.environ,
    *,
    recorded: Mapping[str, Any] | None = None,
) -> "EdgeConfig":
    """Load the configuration that these options name. Parameters and errors are those of `load_config`."""
    kind = edge_config()
    from shared.config import load_config

    return load_config(kind, path, overrides or [], environ, recorded=recorded)
