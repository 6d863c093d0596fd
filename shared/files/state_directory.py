"""Where a process keeps what outlives it."""

import os
from collections.abc import Mapping
from pathlib import Path


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where state belongs: systemd's StateDirectory= for a service, the XDG state directory for a user."""
    if "STATE_DIRECTORY" in environ:
        return Path(environ["STATE_DIRECTORY"].partition(":")[0])
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "isthmus"
