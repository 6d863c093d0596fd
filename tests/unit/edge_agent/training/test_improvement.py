"""The falls of a rate after evaluations that are no better are those of torch."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.training.history import HistoryRow
from edge_agent.training.improvement import rate_drops
from shared.registry.optimizers import OptimizerGroup
from shared.training.recipe import ScheduleConfig
from shared.training.schedule import learning_rate
from tests.support.placed import recipe

FIGURES = st.one_of(st.floats(0.0, 2.0), st.sampled_from([math.nan, math.inf]), st.none())


def row(step, accuracy):
    """A row, of an evaluation where there is an accuracy."""
    return HistoryRow(step, 1, step, 1.0, accuracy, accuracy, 0.1, 1, 0, 32, 0.0, 0, 0, 0.0)


@given(
    figures=st.lists(FIGURES, max_size=60),
    factor=st.floats(0.05, 0.95),
    patience=st.integers(0, 3),
    cooldown=st.integers(0, 3),
    threshold=st.sampled_from([0.0, 1e-4, 0.1]),
    least=st.sampled_from([0.0, 1e-3, 0.049]),
    mode=st.sampled_from(["min", "max"]),
)
def test_rates_are_torchs_after_any_figures(figures, factor, patience, cooldown, threshold, least, mode):
    given_keys = {"factor": factor, "patience": patience, "cooldown": cooldown, "threshold": threshold, "min": least}
    schedule = ScheduleConfig(name="plateau", metric="accuracy", mode=mode, **given_keys)
    told = recipe("sgd")
    group = OptimizerGroup(match=("*bias",), learning_rate=0.3)
    optimizer = told.optimizer.model_copy(update={"groups": (group,)})
    told = told.model_copy(update={"schedule": schedule, "optimizer": optimizer})
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    theirs = torch.optim.SGD([{"params": [weights[0]], "lr": 0.05}, {"params": [weights[1]], "lr": 0.3}])
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, mode, factor, patience, threshold, cooldown=cooldown, min_lr=least
    )
    rows = []
    for step, figure in enumerate(figures):
        rows.append(row(step, figure))
        if figure is not None:
            plateau.step(figure)
        drops = rate_drops(rows, schedule)
        ours = [learning_rate(told, step, place, drops) for place in range(2)]
        assert ours == [each["lr"] for each in theirs.param_groups]


def test_another_schedule_lowers_nothing():
    rows = [row(step, 1.0) for step in range(50)]
    assert rate_drops(rows, ScheduleConfig()) == 0
