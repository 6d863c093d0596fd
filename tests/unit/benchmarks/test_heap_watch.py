"""The peak memory of a program: freed memory, and the program as a whole."""

import subprocess
import sys
import time

import numpy as np

from benchmarks.support.heap_watch import HeapWatch, held_bytes
from tests.conftest import ROOT

HELD = 32 << 20


def test_freed_memory_is_not_counted():
    before = held_bytes()
    held = np.ones(HELD, np.uint8)
    assert held_bytes() - before >= held.nbytes
    del held
    assert held_bytes() - before < HELD / 2


def test_the_peak_is_remembered_after_memory_is_freed():
    before, watch = held_bytes(), HeapWatch()
    held = np.ones(HELD, np.uint8)
    while watch.most - before < HELD:  # the watcher has looked by then
        time.sleep(0)
    del held
    watch.end()
    assert watch.most - held_bytes() > HELD / 2


def test_a_program_runs_as_if_it_was_not_watched(tmp_path):
    (tmp_path / "program.py").write_text("import sys\nprint(__name__, sys.argv[1:])\nraise SystemExit(3)")
    command = [sys.executable, "-m", "benchmarks.support.heap_watch", str(tmp_path / "most")]
    done = subprocess.run(
        [*command, sys.executable, "-m", "program", "--flag"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("__main__ ['--flag']\n", 3), done.stderr
    assert int((tmp_path / "most").read_text()) > 0
