"""The options that commands of both sides share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; overrides file and environment.")
]
