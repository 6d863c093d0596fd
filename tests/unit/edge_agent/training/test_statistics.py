"""The figures of a run that ends, and goes on longer, are those of the longer run."""

import json

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.training.history import HistoryRow
from edge_agent.training.statistics import Statistics

ROW = HistoryRow(0, 1, 0, None, None, None, 0.1, 1, 0, 32, 0.0, 0, 0, 0.0)
LOSSES = st.lists(st.floats(0, 100, width=32), min_size=1, max_size=60)


def train(statistics, losses, ends):
    """Do the steps from where the run is, with a row after each of `ends`."""
    for step in range(statistics.steps, len(losses)):
        statistics.steps = step + 1
        statistics.loss_sum += losses[step]
        statistics.losses += 1
        if statistics.steps in ends:
            statistics.add_row(ROW._replace(step=statistics.steps))


@given(losses=LOSSES, per_epoch=st.integers(1, 25), stops=st.sets(st.integers(1, 59)))
def test_runs_one_after_the_other_have_every_bit_of_one(losses, per_epoch, stops):
    epoch_ends = set(range(per_epoch, len(losses) + 1, per_epoch))
    one = Statistics(len(losses))
    train(one, losses, {*epoch_ends, len(losses)})
    done, kept = 0, ""
    for length in (*sorted(stop for stop in stops if stop < len(losses)), len(losses)):
        run = Statistics(length)
        if done:
            run.steps = done
            run.go_on(json.loads(kept))
            run.take_back_end(ends_epoch=run.steps in epoch_ends)
        train(run, losses[:length], {*epoch_ends, length})
        done, kept = length, json.dumps(run.totals())
    assert [(row.step, row.train_loss) for row in run.history] == [(row.step, row.train_loss) for row in one.history]
