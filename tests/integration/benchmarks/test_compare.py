"""The comparison with other systems, at a small size: its programs run, and ours ends with the bits of plain PyTorch."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.compare.__main__ import compared
from benchmarks.compare.systems import FLOWER, ISTHMUS, LIGHTNING, PLAIN, TRAININGS

PEERS = {LIGHTNING: "lightning", FLOWER: "flwr"}
NEEDED = {"image-folder": ("timm", "torchvision"), "text-adapters": ("transformers", "peft")}


@pytest.mark.parametrize("training", TRAININGS)
def test_the_programs_run_and_train_the_same(training):
    if missing := [name for name in NEEDED[training] if find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    systems = [PLAIN, *(peer for peer, name in PEERS.items() if find_spec(name)), ISTHMUS]
    rows = compared(
        training, dict.fromkeys(systems, Path(sys.executable)), runs=1, threads=1, part=0.15, flower_steps=2
    )
    found = {row.system: row for row in rows}
    assert found.keys() == {system.name for system in systems}
    ours, plain = found[ISTHMUS.name], found[PLAIN.name]
    assert ours.same_bits
    assert ours.accuracy == pytest.approx(plain.accuracy, abs=1e-4)
    assert ours.bytes_up
    assert ours.bytes_down
    assert ours.lines < plain.lines
