"""Runs suites of tests, each in a process of its own, some side by side, and prints what each took.

A suite is a file of integration tests, or a folder of the others: gRPC's asyncio has one poller a process, so event loops
that came and went before must not be a later test's business. The processes are forked from one that has imported what
takes seconds. Suites that measure rates or shares of a core run alone, after the others. Tests that are marked as slow run
with `--slow`, those that are marked as full with `--full`, and so do all properties, with more examples. A suite that is named
runs whole.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INTEGRATION, UNIT = Path("tests/integration"), Path("tests/unit")
LARGE = (UNIT / "shared", UNIT / "edge_agent")
"""They are many suites, a folder each, so that two processes have as much to do."""
ALONE = tuple(
    INTEGRATION / f"{name}.py"
    for name in (
        "adaptation/test_decisions",
        "adaptation/test_measuring",
        "benchmarks/test_shaped_link",
        "benchmarks/test_in_process_session_agrees",
        "benchmarks/test_slow_device",
        "commands/test_control_latency",
        "commands/test_demo_engine",
        "commands/test_demo_move",
        "placements/test_measured_links",
        "peers/test_crowds",
        "peers/test_large_placements",
        "peers/test_worst_claims",
        "training/test_fair_compute",
    )
)
"""Suites that measure rates, delays or shares of a core: beside another suite they would measure that one."""
FIRST = (
    Path("tests/chaos"),
    INTEGRATION / "training/test_data_choices.py",
    UNIT / "benchmarks",
    *(
        INTEGRATION / f"{name}.py"
        for name in (
            "training/test_early_stop_in_groups",
            "recovery/test_killed_ten_times",
            "recovery/test_group_joining",
            "commands/test_pages",
            "recovery/test_crash",
            "recovery/test_group_history",
            "recovery/test_group_recovery",
            "placements/test_replacement",
            "moving/test_drains",
            "training/test_changes",
        )
    ),
    UNIT / "edge_agent/planning",
    UNIT / "shared/execution",
)
"""Suites that take longest, which begin first, so that no core waits for them at the end: by what they took with `--slow`."""
MANY_EXAMPLES = "--hypothesis-profile=many"
QUICK = ("-m", "not slow and not full")
SLOW = ("-m", "slow and not full")
FULL = ("-m", "full or hypothesis", MANY_EXAMPLES)
WHOLE = (MANY_EXAMPLES,)
"""Arguments of pytest for the tests to run, and for the number of examples."""
CORES = 2
"""Cores that are used at most. There is one suite more side by side than cores: a third of the time they wait for links."""
SLOWEST = 20
"""So many suites are in the closing table."""
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.support.imported"])
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")
_FAILURES = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output of a suite, its exit status, and the seconds it took."""

    suite: Path
    output: str
    status: int
    seconds: float

    @property
    def counts(self) -> Counter[str]:
        """Tests by how they ended, from pytest's last line."""
        last = self.output.strip().rpartition("\n")[2]
        return Counter({kind: int(count) for count, kind in _COUNTS.findall(last)})

    @property
    def failures(self) -> list[str]:
        """List the failures: tests by their names, or the suite itself. Empty where none of its tests was to run."""
        if self.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return []
        return _FAILURES.findall(self.output) or [f"{self.suite} ended with status {self.status}"]


class _Running:
    """A suite in a process of its own, whose output goes to a file."""

    def __init__(self, suite: Path, told: Sequence[str], printed: Path) -> None:
        """told: arguments of pytest. printed: the file."""
        printed.touch()
        self._suite, self._printed, self._began = suite, printed, time.monotonic()
        self._process = _PROCESSES.Process(target=_run_here, args=(suite, told, printed))
        self._process.start()

    @property
    def sentinel(self) -> int:
        """Descriptor that is ready when the process has ended."""
        return self._process.sentinel

    def outcome(self) -> Outcome:
        """Wait for the end, and print what the suite printed where it had tests to run."""
        self._process.join()
        seconds = time.monotonic() - self._began
        outcome = Outcome(self._suite, self._printed.read_text(), self._process.exitcode or 0, seconds)
        if outcome.status != pytest.ExitCode.NO_TESTS_COLLECTED:
            print(f"== {outcome.suite}: {seconds:.0f} s\n{outcome.output}", flush=True)
        return outcome


def _run_here(suite: Path, told: Sequence[str], output: Path) -> None:
    """Be the process of a suite, which prints into a file."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(file, standard)
    sys.dont_write_bytecode = False
    imported = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"  # hypothesis was, before the fork
    sys.exit(pytest.main(["-rsfE", "-W", imported, *told, str(suite)]))


def every_suite() -> list[Path]:
    """All suites of this folder but the deployment's, what takes longest first."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / INTEGRATION).rglob("test_*.py"))
    folders = [path for path in _parts(UNIT) if path not in LARGE]
    rest = [*folders, *(part for large in LARGE for part in _parts(large)), Path("tests/fuzz"), *files]
    return [*FIRST, *(suite for suite in rest if suite not in FIRST)]


def _parts(folder: Path) -> list[Path]:
    """The folders and files of tests in a folder."""
    inside = sorted(path.relative_to(ROOT) for path in (ROOT / folder).iterdir())
    return [path for path in inside if path.name.startswith("test_") or (ROOT / path / "__init__.py").exists()]


def run_all(suites: Sequence[Path], told: Sequence[str], at_once: int) -> list[Outcome]:
    """Run suites side by side, and then those that have to be alone. told: arguments of pytest."""
    side_by_side = [suite for suite in suites if suite not in ALONE]
    alone = [suite for suite in suites if suite in ALONE]
    return [*run_side_by_side(side_by_side, told, at_once), *run_side_by_side(alone, told, 1)]


def run_side_by_side(suites: Sequence[Path], told: Sequence[str], at_once: int) -> Iterator[Outcome]:
    """Run suites, at_once at a time, and give each outcome as a suite ends. told: arguments of pytest.

    One thread starts and awaits all processes: where several did, two could read the exit status of one process
    (`multiprocessing` looks at all processes whenever it starts another), and the later found none.
    """
    waiting, running = deque(enumerate(suites)), list[_Running]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, suite = waiting.popleft()
                running.append(_Running(suite, told, Path(folder, str(number))))
            ready = wait([suite.sentinel for suite in running])
            for ended in [suite for suite in running if suite.sentinel in ready]:
                running.remove(ended)
                yield ended.outcome()


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The slowest suites, all counts, and what went wrong."""
    rows = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:SLOWEST]
    lines = [
        f"{row.seconds:7.1f} s  {row.suite}  {', '.join(f'{count} {kind}' for kind, count in row.counts.items())}"
        for row in rows
    ]
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    lines.append(f"{len(outcomes)} suites in {seconds / 60:.1f} minutes")
    lines.append(f"{total['passed']} passed, {len(failures)} failed, {total['skipped']} skipped")
    return "\n".join([*lines, *(f"FAILED {failure}" for failure in failures)])


def main() -> int:
    """Returns 0 when every suite passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites", nargs="*", type=Path, help="files or folders of tests, which run whole; all if none is"
    )
    parser.add_argument("--slow", dest="told", action="store_const", const=SLOW, help="the slow tests instead")
    parser.add_argument(
        "--full", dest="told", action="store_const", const=FULL, help="what both leave out, and all properties"
    )
    parser.add_argument(
        "--at-once", type=int, default=min(CORES, os.cpu_count() or 1) + 1, help="suites side by side (%(default)s)"
    )
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what one suite or program has compiled, all later ones read
    told = arguments.told or (WHOLE if arguments.suites else QUICK)
    began = time.monotonic()
    outcomes = run_all(arguments.suites or every_suite(), told, arguments.at_once)
    outcomes = [outcome for outcome in outcomes if outcome.status != pytest.ExitCode.NO_TESTS_COLLECTED]
    print(summary(outcomes, time.monotonic() - began))
    return int(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
