"""`make demo-engine` from its first line to the picture, with all its processes."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.full


def test_the_cut_moves_as_link_and_device_change_and_the_run_is_compared_with_every_other_one(tmp_path):
    demo = [sys.executable, "-m", "deploy.demo.demo_engine"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(demo, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    profiled, raced = done.stdout.split("$ edge-agent run, 5 times")
    assert "profile: " in profiled
    dropped, slowed = raced.index("0.9 Mbit/s"), raced.index("and the device 5 times as slow")
    (first, *_) = moves = list(re.finditer(r"the engine has moved the cut from (\d) to (\d)", raced))
    assert dropped < first.start() < slowed, "the link has dropped"
    assert int(first[1]) < int(first[2]), "less crosses it"
    steps, seconds, cuts = re.search(r"with the engine: (\d+) steps in (\d+) s, at cuts ([\d, ]+)\n", raced).groups()
    assert cuts.split(", ") == [first[1], *(move[2] for move in moves)]
    assert int(steps) > 0
    assert 50 <= int(seconds) <= 60
    compared = re.findall(r"([\d.]+) (?:times as fast )?as (cut \d kept|the device alone)", raced)
    assert [name for _, name in compared] == ["cut 1 kept", "cut 2 kept", "cut 3 kept", "the device alone"]
    assert float(compared[-1][0]) > 1, "the weak device needs help, however busy this machine is"
    png, svg = (tmp_path / "run" / "demo-engine" / f"demo-engine.{kind}" for kind in ("png", "svg"))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "cut 2 kept" in svg.read_text()
