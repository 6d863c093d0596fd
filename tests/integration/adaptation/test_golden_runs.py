"""Engines decide today what they decided when the runs were written: all 300 runs of two workers and 60 of a chain."""

import json

import pytest

from tests.support.crossed import thinned
from tests.support.planning.golden_runs import FILE, KINDS

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("kind", "seed"), thinned((kind, seed) for kind, (_, count) in KINDS.items() for seed in range(count))
)
def test_an_engine_decides_what_it_decided(kind, seed):
    run, _ = KINDS[kind]
    assert run(seed) == KEPT[kind][seed]
