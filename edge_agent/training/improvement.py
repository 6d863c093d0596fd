"""The progress of a run, as its history tells it: pure functions of the rows, so nothing has to be kept beside them."""

import math
from collections.abc import Iterable, Iterator, Sequence

from edge_agent.improvement_config import EarlyStopConfig, FollowedFigure
from edge_agent.training.history import HistoryRow
from shared.bounds import MOST_RATE_DROPS
from shared.registry.metrics import ACCURACY, LOSS
from shared.training.recipe import ScheduleConfig


def figure_of(row: HistoryRow, figure: FollowedFigure) -> float | None:
    """Return the followed figure of a row; None if its step had no evaluation."""
    known = {LOSS: row.test_loss, ACCURACY: row.accuracy}
    return known[figure.metric] if figure.metric in known else row.metrics.get(figure.metric)


def improvements(rows: Iterable[HistoryRow], figure: FollowedFigure, least: float = 0.0) -> Iterator[tuple[int, bool]]:
    """Yield the step of each evaluation, and whether its figure is better than the best before by more than `least`.

    The first is better than none. A figure that is no number is better than nothing else.
    """
    best: float | None = None
    for row in rows:
        if (value := figure_of(row, figure)) is None:
            continue
        signed = -value if figure.falls else value
        is_better = signed == signed and (best is None or signed - best > least)
        if is_better:
            best = signed
        yield row.step, is_better


def best_step(rows: Iterable[HistoryRow], figure: FollowedFigure, most_steps: int | None = None) -> int | None:
    """Return the step of the best evaluation, the first of equals; None if none was good. most_steps: ignores later ones."""
    found = (row for row in rows if most_steps is None or row.step <= most_steps)
    return max((step for step, is_better in improvements(found, figure) if is_better), default=None)


def rate_drops(rows: Iterable[HistoryRow], schedule: ScheduleConfig) -> int:
    """Count how often "plateau" has lowered the rate, by the rules of torch's ReduceLROnPlateau; 0 for another schedule."""
    if schedule.name != "plateau":
        return 0
    figure = FollowedFigure(metric=schedule.metric, mode=schedule.mode)
    found = (value for row in rows if (value := figure_of(row, figure)) is not None)
    best, drops, bad, cooldown = math.inf if figure.falls else -math.inf, 0, 0, 0
    for value in found:
        is_better = value < best * (1 - schedule.threshold) if figure.falls else value > best * (1 + schedule.threshold)
        best, bad = (value, 0) if is_better else (best, bad + 1)
        if cooldown:
            cooldown, bad = cooldown - 1, 0
        if bad > schedule.patience:
            drops, cooldown, bad = drops + 1, schedule.cooldown, 0
    return min(drops, MOST_RATE_DROPS)


def ends_early(rows: Sequence[HistoryRow], early_stop: EarlyStopConfig | None) -> bool:
    """Tell whether a run ends with the evaluation of its newest row, because too many in a row were not better."""
    if early_stop is None or not rows or figure_of(rows[-1], early_stop) is None:
        return False
    found = [is_better for _, is_better in improvements(rows, early_stop, early_stop.min_delta)]
    return not any(found[-early_stop.patience :]) and len(found) >= early_stop.patience
