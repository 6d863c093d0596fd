"""`make demo-tiers` from its first line to the summary, as three processes."""

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.full


def test_layers_and_samples_are_divided_as_planned_and_a_killed_worker_takes_nobody_back(tmp_path):
    demo = [sys.executable, str(ROOT / "deploy/demo/demo_tiers.py")]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    planned, trained = done.stdout.split("$ edge-agent ")[1:]
    assert {name for name, _ in re.findall(r"  (\w+): blocks \[(\d+), \d+\) on samples", planned)} == {
        "edge",
        "near",
        "gpu",
    }
    (killed,) = re.findall(r"step (\d+): gpu is killed", trained)
    (back,) = re.findall(r"step (\d+): gpu is back, and nobody went back", trained)
    assert int(killed) < int(back)
    (accuracy,) = re.findall(r"accuracy +│ +([\d.]+)%", trained)
    assert float(accuracy) > 90
