"""Pictures of the output of commands on a terminal."""

import io
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

AS_ON_A_TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
BETWEEN_FRAMES = re.compile(r"\r?(?:\x1b\[2K)?(?:\x1b\[1A\x1b\[2K)+|\x1b\[\?25[lh]")
"""Codes that a live table prints before it is printed anew, and codes that hide and show the cursor."""


def printed_by(command: Sequence[str | Path], width: int) -> str:
    """Return the output of a command on a terminal of `width` characters, codes of colours included."""
    variables = {**os.environ, **AS_ON_A_TERMINAL, "COLUMNS": str(width)}
    return subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout


def frames(printed: str) -> list[str]:
    """Split the output of a live table into its looks, in their order."""
    return [frame.strip("\r\n") for frame in BETWEEN_FRAMES.split(printed) if frame.strip()]


def draw(command: str, printed: str, picture: Path, width: int) -> None:
    """Write an SVG of a command and of what it printed."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}"))
    console.print(Text.from_ansi(printed))
    picture.write_text(to_svg(console, command), encoding="utf-8")


def to_svg(console: Console, title: str) -> str:
    """Return the recording of a console, without the typefaces that a browser would fetch from elsewhere."""
    return re.sub(r"\s*@font-face {.*?}", "", console.export_svg(title=title), flags=re.DOTALL)
