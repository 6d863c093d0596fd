"""The options that commands of both sides share."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from shared.errors import ConfigError

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; overrides file and environment.")
]


def one_of(names: Collection[str]) -> dict[str, Any]:
    """Declare an option or argument that takes one of `names`, which are known when the program runs. It may be left out."""

    def check(name: str | None) -> str | None:
        if name is not None and name not in names:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(names)}.")
        return name

    return {"callback": check, "metavar": f"[{'|'.join(names)}]"}


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers written as 2,3. Raises ConfigError, naming the option, for anything else."""
    fields = text.split(",")
    if not all(field.strip().isdecimal() for field in fields):
        raise ConfigError(f'{option} is "{text}"; it must be whole numbers with commas between, as 2,3')
    return tuple(map(int, fields))
