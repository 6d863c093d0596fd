"""A watcher beside a run prints its observations, and nothing else, where another benchmark reads it."""

import json
import subprocess
import sys

from tests.support.running import trainer_process


def test_calls_to_a_session_that_has_ended_are_an_empty_array():
    with trainer_process("compute.threads=1") as (_, address):
        watching = [sys.executable, "-m", "benchmarks.support.watch", "calls", address, "ended", "60"]
        done = subprocess.run(watching, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
