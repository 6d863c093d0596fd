"""Runs suites of tests, each in a process of its own, two at a time, and prints what each took.

A suite is a file of integration tests, or a folder of the others: gRPC's asyncio has one poller a process, so event loops
that came and went before must not be a later test's business. The processes are forked from one that has imported what
takes seconds. Suites that measure rates or shares of a core run alone, after the others. Suites that take minutes are slow:
they run with `--slow`, together with the rest or by themselves.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INTEGRATION = Path("tests/integration")
ALONE = tuple(
    INTEGRATION / f"{name}.py"
    for name in (
        "adaptation/test_decisions",
        "benchmarks/test_shaped_link",
        "benchmarks/test_simulation_agrees",
        "benchmarks/test_slow_device",
        "commands/test_control_latency",
        "peers/test_large_placements",
        "peers/test_worst_claims",
    )
)
"""What measures rates, delays or shares of a core: beside another suite it would measure that one."""
FIRST = (
    Path("tests/unit"),
    *(INTEGRATION / f"{name}.py" for name in ("commands/test_bad_input", "training/test_exactness")),
    Path("tests/chaos"),
)
"""What takes longest begins first, so that no core waits for it at the end."""
SLOW = tuple(
    INTEGRATION / f"{name}.py"
    for name in (
        "recovery/test_crash",
        "adaptation/test_calibration",
        "adaptation/test_decisions",
        "adaptation/test_golden_runs",
        "training/test_fair_compute",
        "peers/test_fuzz_frames",
        "recovery/test_resuming",
        "recovery/test_interruptions",
        "placements/test_replacement",
        "commands/test_pages",
        "commands/test_demo_chain",
        "commands/test_extending",
        "benchmarks/test_peer",
        "benchmarks/test_shaped_link",
        "benchmarks/test_simulation_agrees",
        "peers/test_large_placements",
        "peers/test_worst_claims",
    )
)
"""What `make test` leaves to `make test-slow`."""
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.support.imported"])
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a suite printed, how it ended, and the seconds it took."""

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
    def failed(self) -> bool:
        """Whether anything went wrong, an empty suite included."""
        return self.status != 0


def run(suite: Path) -> Outcome:
    """Run one suite to its end."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as printed:
        process = _PROCESSES.Process(target=_run_here, args=(suite, printed.name))
        process.start()
        process.join()
        outcome = Outcome(suite, printed.read(), process.exitcode or 0, time.monotonic() - began)
    print(f"== {suite}: {outcome.seconds:.0f} s\n{outcome.output}", flush=True)
    return outcome


def _run_here(suite: Path, output: str) -> None:
    """Be the process of a suite, which prints into a file."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(file, standard)
    sys.exit(pytest.main(["-rs", str(suite)]))


def every_suite() -> list[Path]:
    """All suites of this folder but the deployment's, what takes longest first."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / INTEGRATION).rglob("test_*.py"))
    rest = [Path("tests/unit"), Path("tests/fuzz"), *files]
    return [*FIRST, *(suite for suite in rest if suite not in FIRST)]


def run_all(suites: Sequence[Path], at_once: int) -> list[Outcome]:
    """Run suites side by side, and then those that have to be alone."""
    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(run, [suite for suite in suites if suite not in ALONE]))
    return outcomes + [run(suite) for suite in suites if suite in ALONE]


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """A line a suite, the slowest first, and a closing line with all counts."""
    rows = sorted(outcomes, key=lambda outcome: -outcome.seconds)
    lines = [
        f"{row.seconds:7.1f} s  {row.suite}  {', '.join(f'{count} {kind}' for kind, count in row.counts.items())}"
        + (f"  FAILED (status {row.status})" if row.failed else "")
        for row in rows
    ]
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    broken = sum(outcome.failed and not outcome.counts["failed"] for outcome in outcomes)
    lines.append(f"{len(outcomes)} suites in {seconds / 60:.1f} minutes")
    lines.append(
        f"{total['passed']} passed, {total['failed'] + total['error'] + broken} failed, {total['skipped']} skipped"
    )
    return "\n".join(lines)


def main() -> int:
    """Returns 0 when every suite passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites", nargs="*", type=Path, help="files or folders of tests; all but the slow ones if none is named"
    )
    parser.add_argument("--slow", action="store_true", help="the slow suites instead")
    parser.add_argument(
        "--at-once", type=int, default=min(2, os.cpu_count() or 1), help="suites side by side (%(default)s)"
    )
    arguments = parser.parse_args()
    quick = [suite for suite in every_suite() if suite not in SLOW]
    suites = arguments.suites or (list(SLOW) if arguments.slow else quick)
    began = time.monotonic()
    outcomes = run_all(suites, arguments.at_once)
    print(summary(outcomes, time.monotonic() - began))
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
