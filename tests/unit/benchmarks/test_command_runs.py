"""The benchmark of commands: each command runs here, and its figures are shown."""

import pytest

from benchmarks.footprint import HERE, commands_table
from benchmarks.support.command_runs import COMMANDS, Run, all_answered


@pytest.mark.full
def test_every_command_is_timed_and_none_has_a_defect():
    found = all_answered({"ours": HERE}, 1)
    assert len(found) == sum(map(len, COMMANDS.values()))
    for runs in found.values():
        (run,) = runs["ours"]
        assert run.wall > 0
        assert run.processor > 0


def test_a_checkout_has_its_own_columns():
    shown = commands_table({"edge-agent --help": {"ours": [Run(0.25, 0.5)], "before": [Run(1.0, 2.0)]}})
    cells = [cell for column in shown.columns for cell in column.cells]
    figures = ["0.25 (0.25 to 0.25)", "0.50 (0.50 to 0.50)", "1.00 (1.00 to 1.00)", "2.00 (2.00 to 2.00)"]
    assert cells == ["edge-agent --help", *figures]
