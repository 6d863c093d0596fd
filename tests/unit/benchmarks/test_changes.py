"""The comparison of ways to fine-tune, at its smallest."""

import json

import pytest

from benchmarks.changes import ROWS, main

pytestmark = pytest.mark.slow


def test_ways_that_send_features_once_or_their_changes_send_fewer_bytes(tmp_path, capsys):
    rows = ["32 bits", "8 bits, a block less", "recall, a block less", "changes"]
    assert {*rows} <= {*ROWS}
    main(["--epochs", "3", "--seeds", "0", "--json", str(tmp_path / "changes.json"), "--rows", *rows])
    assert "of 32 bits up" in capsys.readouterr().out
    results = {one["row"]: one for one in json.loads((tmp_path / "changes.json").read_text())["results"]}
    assert list(results) == rows
    whole, coded, recalled, changed = (results[row]["bytes_up"] for row in rows)
    assert 0.2 < coded / whole < 0.3
    assert recalled / coded < 1 / 3 + 0.04
    assert changed / coded < 0.5
    assert all(one["accuracy_percent"] > 60 for one in results.values())
    assert all(one["step_processor_seconds"] > 0 for one in results.values())
