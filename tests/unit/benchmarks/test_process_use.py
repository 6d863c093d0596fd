"""The resource use of a process: seconds, and the number of its waits."""

import subprocess
import sys

import pytest

from benchmarks.support.process_use import ProcessUse, use_of, use_until_now
from shared.errors import IsthmusError

WAITS = "import sys, time\nfor _ in range(int(sys.argv[1])): time.sleep(1e-4)"
WORKS = "import time\nwhile time.process_time() < 0.5: pass"


def used(script: str, *arguments: str) -> ProcessUse:
    return use_of(subprocess.Popen([sys.executable, "-c", script, *arguments], stderr=subprocess.PIPE, text=True))


def test_every_wait_is_a_voluntary_switch():
    few, many = used(WAITS, "100"), used(WAITS, "1100")
    assert many.less(few, 1000).voluntary == pytest.approx(1.0, abs=0.1)


def test_work_is_seconds():
    assert used(WORKS).seconds >= 0.5


def test_the_use_of_a_process_that_goes_on_is_told_before_its_end():
    script = f"{WORKS}\nprint(flush=True)\n{WAITS}\nprint(flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", script, "1000"], **pipes)
    assert process.stdout is not None
    process.stdout.readline()
    worked = use_until_now(process.pid)
    process.stdout.readline()
    waited = use_until_now(process.pid)
    process.communicate("\n", timeout=60)
    assert 0.5 <= worked.seconds <= waited.seconds
    assert waited.less(worked, 1000).voluntary == pytest.approx(1.0, abs=0.1)


def test_a_process_that_fails_is_an_error_with_its_last_words():
    with pytest.raises(IsthmusError, match="code that is wanted"):
        used("raise SystemExit('not the code that is wanted')")
