"""`make demo-groups` from its first line to the last, as four processes."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_a_group_of_three_ends_with_one_model_though_a_member_is_killed(tmp_path):
    demo = [sys.executable, str(ROOT / "deploy/demo/demo_groups.py")]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "member 1 is killed" in done.stdout
    assert "of 174, 3 members" in done.stdout
    assert done.stdout.count("member 1: process") == 2, "it is started again"
    assert "all members have the same model, bit for bit" in done.stdout
