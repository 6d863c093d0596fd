"""Flower beside a group: its worker needs a Python of its own."""

import sys
from pathlib import Path

import pytest

from benchmarks.groups.flower import step_seconds
from benchmarks.groups.links import MIXES
from shared.errors import IsthmusError


def test_a_python_without_flower_is_told_of():
    with pytest.raises(IsthmusError, match=r"(?s)Flower failed: .*No module named 'flwr'"):
        step_seconds(Path(sys.executable), MIXES[0].layers, "127.0.0.1", [[], []], 2)
