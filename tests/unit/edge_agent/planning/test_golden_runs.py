"""Engines decide as they did when these runs were written. This is one in thirty of the runs that make test-slow tries."""

import json

import pytest

from tests.support.planning.golden_runs import FILE, KINDS

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


def test_as_many_runs_are_kept_as_there_are():
    assert {kind: len(runs) for kind, runs in KEPT.items()} == {kind: count for kind, (_, count) in KINDS.items()}


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, (_, count) in KINDS.items() for seed in range(0, count, 60)]
)
def test_an_engine_decides_what_it_decided(kind, seed):
    run, _ = KINDS[kind]
    assert run(seed) == KEPT[kind][seed]
