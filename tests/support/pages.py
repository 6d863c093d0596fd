"""The documentation's pages as what they tell a reader to do: files to write, and commands to type in two terminals."""

import os
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.running import ROOT, StandardError

_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TYPING_SECONDS = 1200
"""The time for one command; an installation may take many minutes."""


@dataclass(frozen=True)
class Block:
    """A fenced block. title: a terminal, or the name of a file; empty where there is none."""

    language: str
    title: str
    text: str

    @property
    def commands(self) -> list[str]:
        return self.text.splitlines()


def blocks(page: str) -> list[Block]:
    """The fenced blocks of docs/`page`."""
    return blocks_of((ROOT / "docs" / page).read_text(encoding="utf-8"))


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page or of a part of one."""
    return [Block(*found) for found in _FENCE.findall(text)]


def sections(page: str) -> dict[str, str]:
    """The text under each heading of the second level of docs/`page`."""
    parts = (ROOT / "docs" / page).read_text(encoding="utf-8").split("\n## ")[1:]
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


@dataclass(frozen=True)
class Typed:
    """A command that was typed, how long it took (one that goes on: until it served), and what it printed."""

    command: str
    seconds: float
    output: str


class Reader:
    """A user in a clone who follows a page, with two terminals.

    folder: the clone. shell: what a command is given to, as its last argument. at: what the shell calls the folder, where
    that is on another machine. done: what commands begin with that need not be typed again.
    """

    def __init__(
        self,
        folder: Path,
        shell: Sequence[str] = ("sh", "-c"),
        at: str | None = None,
        environment: Mapping[str, str] | None = None,
        done: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder
        self._shell = shell
        self._at = at or str(folder)
        self._environment = {**os.environ, **(environment or {})}
        self._done = done
        self._serving: tuple[subprocess.Popen[str], StandardError] | None = None

    def follow(self, page: list[Block]) -> Iterator[Typed]:
        """Write every file that has a name and type every command that has a terminal, in the page's order."""
        try:
            for block in page:
                if block.language != "sh" and block.title:
                    (self._folder / block.title).write_text(block.text)
                elif block.title:
                    for command in block.commands:
                        if not command.startswith(self._done):
                            yield self.type(command)
        finally:
            self.interrupt()

    def type(self, command: str) -> Typed:
        """Type one command; one that serves goes on until the next of its kind, or until it is interrupted."""
        started = time.monotonic()
        if "cloud-trainer serve" in command:
            self.interrupt()
            output = self._start(command)
        else:
            output = self._run(command)
        return Typed(command, time.monotonic() - started, output)

    def _run(self, command: str) -> str:
        done = subprocess.run(
            [*self._shell, f"cd {self._at} && {command}"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TYPING_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def _start(self, command: str) -> str:
        """Type a command that goes on; returns when it serves."""
        process = subprocess.Popen(
            [*self._shell, f"cd {self._at} && echo $$ >.terminal && exec env {command}"],
            env=self._environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = StandardError(process)
        self._serving = process, said
        return f"listening on {said.first_event('listening')['address']}"

    def interrupt(self) -> None:
        """Ctrl-C where a command serves."""
        if self._serving is not None:
            process, said = self._serving
            self._serving = None
            self._run("kill -INT $(cat .terminal)")
            process.wait(timeout=60)
            said.join()


def fetched(url: str) -> str | None:
    """Return the page that is served at `url`, if there is one."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


@contextmanager
def looking(fetch: Callable[[], str | None], every_seconds: float = 0.05) -> Iterator[list[str]]:
    """Look at something again and again, and yield all that was seen so far."""
    seen: list[str] = []
    enough = threading.Event()

    def look() -> None:
        while not enough.wait(every_seconds):
            if (text := fetch()) is not None:
                seen.append(text)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        enough.set()
        thread.join()
