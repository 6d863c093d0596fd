"""The memory of processes: the figures of this process, and the table."""

import os
import resource
import subprocess
import sys

import pytest

from benchmarks.footprint import Memory, memory_of, table


def test_the_memory_of_a_process_is_what_the_system_counts():
    seen = memory_of(os.getpid())
    assert 0 < seen.pss <= seen.resident
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert seen.resident == pytest.approx(most, rel=0.01)  # The system adds up its per-core counters.


WRITES = """
print(flush=True)
input()
held = bytearray(b"1") * (64 << 20)
print(flush=True)
input()
"""


def test_memory_that_is_written_to_is_seen():
    """A process of its own measures this: the share of memory that this process has depends on its siblings."""
    command = [sys.executable, "-c", WRITES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        writer.stdout.readline()
        before = memory_of(writer.pid)
        print(file=writer.stdin, flush=True)
        writer.stdout.readline()
        assert memory_of(writer.pid).pss - before.pss > 0.9 * (64 << 20)
        writer.communicate("\n")


def test_a_checkout_has_its_own_columns():
    ours, before = {"agent": Memory(1_000_000, 2_000_000)}, {"agent": Memory(3_000_000, 4_000_000)}
    shown = table({"ours": [ours], "before": [before]})
    cells = [cell for column in shown.columns for cell in column.cells]
    assert cells == ["agent", "1 (1 to 1)", "2 (2 to 2)", "3 (3 to 3)", "4 (4 to 4)"]
