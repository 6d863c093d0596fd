"""Runs the unit tests of what changed, each time a file is saved: `make watch`.

The unit tests mirror the packages, so the tests of a file lie in the nearest folder of the same name below `tests/unit`.
Integration tests are left to `make test FILE=...`, because they take longer than one waits between two edits.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from watchfiles import watch

ROOT = Path(__file__).resolve().parent.parent
UNIT = Path("tests/unit")
WATCHED = ("shared", "edge_agent", "cloud_trainer", "benchmarks", "deploy", "docs", "tests/unit")


def unit_tests_of(changed: Iterable[Path], root: Path = ROOT) -> list[Path]:
    """The files and folders of unit tests to run after a change, relative to `root` as `changed` is, none inside another.

    A file of tests is run itself; every other file has the nearest existing folder below `tests/unit` with its path.
    A file with tests nowhere near it, such as one directly in `shared/`, has the tests of its whole package.
    """
    tests = {tests for path in changed if (tests := _tests_of(path, root)) is not None}
    return sorted(path for path in tests if not tests & set(path.parents))


def _tests_of(path: Path, root: Path) -> Path | None:
    if path.is_relative_to(UNIT):
        is_tests = path.name.startswith("test_") and path.suffix == ".py"
        return path if is_tests and (root / path).exists() else None
    folders = (UNIT / folder for folder in path.parents if folder.parts)
    return next((folder for folder in folders if (root / folder).is_dir()), None)


def main() -> None:
    """Watch until Ctrl-C."""
    print(f"watching {', '.join(WATCHED)}; save a file to run its tests, Ctrl-C to end", flush=True)
    for changes in watch(*(ROOT / folder for folder in WATCHED), raise_interrupt=False):
        if tests := unit_tests_of(Path(path).relative_to(ROOT) for _, path in changes):
            print(f"== {' '.join(map(str, tests))}", flush=True)
            subprocess.run([sys.executable, "-m", "pytest", *map(str, tests)], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
