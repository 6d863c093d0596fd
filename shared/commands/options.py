"""The options that commands of both sides share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; overrides file and environment.")
]


def one_of(names: Sequence[str]) -> dict[str, Any]:
    """What an option or argument is declared with that takes one of `names`, which are known when the program runs."""

    def check(name: str) -> str:
        if name not in names:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(names)}.")
        return name

    return {"callback": check, "metavar": f"[{'|'.join(names)}]"}
