"""`make demo-move` from its first line to the comparison, with all its processes."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.full


def test_the_run_goes_along_the_path_from_trainer_to_trainer_as_the_simulator_does(tmp_path):
    demo = [sys.executable, "-m", "deploy.demo.demo_move"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(demo, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "profile: " in done.stdout
    with_whom = re.findall(r"^ *\d+ s: with ([a-z ]+); round trips in ms: west \d+", done.stdout, re.MULTILINE)
    assert with_whom[0] == "west"
    assert with_whom[-1] in ("middle", "east"), "the path ends there"
    steps, best, sticky = re.search(
        r"(\d+) steps in 7\d s; the simulator has (\d+) .* and (\d+) ", done.stdout
    ).groups()
    assert int(steps) > 0
    assert int(best) >= int(sticky)
