"""Writes of processes: a sandbox that records every change to the file system, and the check for those out of
bounds."""

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WATCHED = Path(__file__).resolve().parent / "watched"
HARMLESS = (Path("/dev"), Path("/proc/self"))
"""Folders in which writes leave nothing behind."""


class Sandbox:
    """A folder in which processes have their home, their temporary files and all that they are told to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events = folder / "events"
        self._precious = folder / "precious"
        (self._precious / "letters").mkdir(parents=True)
        (self._precious / "letters" / "one").write_text("dear")

    @property
    def state(self) -> Path:
        """Return the folder of the state of this user's programs, unless they are told otherwise."""
        return self.folder / "state"

    def changed(self) -> set[Path]:
        """Every path that a process has written, created, renamed or removed."""
        lines = self._events.read_text().splitlines() if self._events.exists() else []
        return {Path(ast.literal_eval(line.partition(" ")[2])) for line in lines}

    def assert_only(self, allowed: Iterable[Path]) -> None:
        """Nothing was changed but in these folders, or these files; and what was there before is as it was."""
        roots = [*allowed, *HARMLESS]
        outside = {path for path in self.changed() if not any(path == root or root in path.parents for root in roots)}
        assert not outside, sorted(outside)
        assert {path.name for path in self._precious.rglob("*")} == {"letters", "one"}
        assert (self._precious / "letters" / "one").read_text() == "dear"

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Processes that begin meanwhile live in the sandbox, and are watched."""
        for name in ("home", "tmp", "state"):
            (self.folder / name).mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(WATCHED))
            patch.setenv("WATCHED", str(self._events))
            patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
            patch.setenv("HOME", str(self.folder / "home"))
            patch.setenv("TMPDIR", str(self.folder / "tmp"))
            patch.setenv("XDG_STATE_HOME", str(self.state))
            patch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it, to a folder of temporary files
            yield
