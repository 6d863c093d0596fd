"""Memory that is left: what the kernel says, and what a control group leaves of it, in both versions of these."""

import sys

import pytest

from edge_agent.profiling.memory import available_bytes

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """Folders that stand for /proc and /sys/fs/cgroup, of a machine with 4 GiB free."""
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    return proc, groups


def in_group(machine, listed, folder, limit_file, limit, stat):
    proc, groups = machine
    (proc / "self/cgroup").write_text(listed)
    (groups / folder).mkdir(parents=True)
    (groups / folder / limit_file).write_text(f"{limit}\n")
    (groups / folder / "memory.stat").write_text(stat)
    return available_bytes(proc, groups)


def test_without_a_limit_it_is_what_the_kernel_says(machine):
    assert available_bytes(*machine) == 4 * GIB
    left = in_group(machine, "0::/unit\n", "unit", "memory.max", "max", "anon 5\n")
    assert left == 4 * GIB


@pytest.mark.parametrize(
    ("listed", "folder", "limit_file", "stat"),
    [
        ("0::/system.slice/agent.service\n", "system.slice/agent.service", "memory.max", f"anon {GIB}\nfile 77\n"),
        ("0::/system.slice/agent.service\n", "system.slice", "memory.max", f"anon {GIB}\n"),
        ("0::/\n", "", "memory.max", f"anon {GIB}\nfile 5\n"),
        ("5:cpu:/x\n4:memory:/docker/1\n0::/\n", "memory/docker/1", "memory.limit_in_bytes", f"total_rss {GIB}\n"),
        ("4:memory:/docker/1\n", "memory", "memory.limit_in_bytes", f"cache 9\ntotal_rss {GIB}\n"),
    ],
)
def test_a_limit_of_the_group_or_of_one_above_it_counts_without_what_can_be_dropped(
    listed, folder, limit_file, stat, machine
):
    assert in_group(machine, listed, folder, limit_file, 2 * GIB, stat) == GIB


def test_a_group_that_has_taken_all_leaves_nothing(machine):
    assert in_group(machine, "0::/u\n", "u", "memory.max", GIB, f"anon {2 * GIB}\n") == 0


def test_a_kernel_that_says_nothing_gives_no_bound(tmp_path):
    assert available_bytes(tmp_path, tmp_path) == sys.maxsize
