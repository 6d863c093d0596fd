"""A loss that is no number ends a run; where losses are scaled, one that overflows now and then does not."""

import math

import pytest
from structlog.testing import capture_logs

from edge_agent.training.divergence import LossCheck
from shared.errors import DivergedError
from shared.training.loss_scale import LossScale


def overflowing(scale: LossScale, updates: int) -> None:
    for step in range(updates):
        scale.note(step, scale.now, overflowed=True)


def test_a_loss_that_is_no_number_ends_the_run_at_once_where_it_is_not_scaled():
    check = LossCheck("stop", None)
    check.check(3, 1.0)
    with pytest.raises(DivergedError, match="the loss of step 4 is nan, so training has diverged"):
        check.check(4, math.nan)


def test_a_scaled_one_does_once_so_many_updates_were_skipped_that_the_scale_is_below_1():
    scale = LossScale()
    check = LossCheck("stop", scale)
    overflowing(scale, 16)
    check.check(16, math.inf)
    overflowing(scale, 1)
    check.check(17, 1.0)
    with pytest.raises(DivergedError, match="the loss of step 18 is inf"):
        check.check(18, math.inf)


def test_gradients_that_always_overflow_end_the_run_too_whatever_the_loss_is():
    scale = LossScale()
    check = LossCheck("stop", scale)
    overflowing(scale, 79)
    check.check(79, 1.0)
    overflowing(scale, 1)
    with pytest.raises(DivergedError, match="overflow, however little the loss is scaled, so training has diverged"):
        check.check(80, 1.0)


def test_who_wants_to_go_on_is_warned_once():
    scale = LossScale()
    overflowing(scale, 17)
    check = LossCheck("warn", scale)
    with capture_logs() as said:
        check.check(17, math.nan)
        check.check(18, math.nan)
    assert [line["event"] for line in said] == ["the loss is no number"]
