"""The step at which a process was killed: the next one knows it, and only after a kill."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from edge_agent.sessions.kills import IS_BUSY, STEPS, Kill, kills, last_moments
from tests.support.forked import Forked


def killed(folder, steps, busy, before, proc):
    with last_moments(folder, before, proc) as numbers:
        numbers[STEPS], numbers[IS_BUSY] = steps, busy
        os.kill(os.getpid(), signal.SIGKILL)


def kill_at(folder, steps, *, busy=True, before=None, proc=Path("/proc")):
    assert Forked(killed, folder, steps, busy, before, proc).wait(60) == -signal.SIGKILL


def test_a_kill_is_known_with_its_step_and_so_is_the_one_before(tmp_path):
    kill_at(tmp_path, 7)
    (first,) = kills(tmp_path)
    assert first == Kill(7, for_memory=False)
    kill_at(tmp_path, 9, before=first)
    assert kills(tmp_path) == [Kill(9, for_memory=False), first]


def test_a_process_that_ends_by_itself_leaves_nothing(tmp_path):
    kill_at(tmp_path, 7)
    with suppress(RuntimeError), last_moments(tmp_path, None) as numbers:
        numbers[STEPS], numbers[IS_BUSY] = 7, 1
        raise RuntimeError
    assert kills(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def proc(tmp_path):
    """A folder that stands for /proc."""
    folder = tmp_path / "proc"
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text("5de38bab-5df0-4d0b-a617-237f417a4232\n")
    (folder / "vmstat").write_text("pgfault 99\noom_kill 3\n")
    return folder


def test_a_kill_while_nothing_was_computed_counts_only_where_memory_was_short(tmp_path, proc):
    kill_at(tmp_path, 7, busy=False, proc=proc)
    assert kills(tmp_path, proc) == []
    (proc / "vmstat").write_text("oom_kill 4\n")
    assert kills(tmp_path, proc) == [Kill(7, for_memory=True)]


def test_nothing_counts_after_the_machine_was_started_again(tmp_path, proc):
    kill_at(tmp_path, 7, proc=proc)
    assert kills(tmp_path, proc) == [Kill(7, for_memory=False)]
    (proc / "sys/kernel/random/boot_id").write_text("6de38bab-5df0-4d0b-a617-237f417a4232\n")
    assert kills(tmp_path, proc) == []


@pytest.mark.parametrize("page", [b"", b"x" * 63, b"x" * 65, b"\xff" * 64])
def test_a_damaged_page_is_none(page, tmp_path):
    (tmp_path / "last-moments").write_bytes(page)
    assert kills(tmp_path) == []


def test_where_it_cannot_be_written_the_process_goes_on(tmp_path):
    with last_moments(tmp_path / "nowhere", None) as numbers:
        numbers[STEPS] = 1
