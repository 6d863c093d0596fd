"""The scale of the loss: torch's own over any course of updates, and what holds where several are under way."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ProtocolError, StorageError
from shared.training.loss_scale import FIRST, GROWTH_UPDATES, LEAST, MOST, LossScale, check_scale


class Plain:
    """`torch.amp.GradScaler` with one parameter, whose gradient is given."""

    def __init__(self) -> None:
        self._parameter = torch.nn.Parameter(torch.zeros(1))
        self._optimizer = torch.optim.SGD([self._parameter], 0.1)
        self.scaler = torch.amp.GradScaler("cpu")
        self.scaler.scale(torch.zeros(()))

    def update(self, gradient: float) -> None:
        self._parameter.grad = torch.tensor([gradient])
        self.scaler.step(self._optimizer)
        self.scaler.update()


@pytest.mark.full
@given(st.lists(st.one_of(st.just(0), st.integers(1, 2 * GROWTH_UPDATES + 1)), min_size=1, max_size=6))
def test_with_one_update_under_way_it_is_torchs(runs):
    """runs: numbers of finite updates, each followed by an overflow."""
    plain, ours, step = Plain(), LossScale(), 0
    for finite in runs:
        for gradient in [*[1.0] * finite, torch.inf]:
            scale = ours.before(step)
            assert scale == plain.scaler.get_scale()
            plain.update(gradient)
            ours.note(step, scale, overflowed=gradient == torch.inf)
            step += 1
    assert ours.now == plain.scaler.get_scale()
    assert ours.skipped == len(runs)


def test_updates_that_overflow_for_one_reason_lower_it_once():
    scale = LossScale()
    for step in range(4):
        scale.note(step, FIRST, overflowed=True)
    assert scale.now == FIRST / 2
    assert scale.skipped == 4


def test_a_step_has_the_scale_of_the_updates_before_whatever_else_is_done():
    scale = LossScale()
    for step in range(5):
        scale.note(step, scale.now, overflowed=step in (1, 3))
    assert [scale.before(step) for step in range(-2, 6)] == [
        FIRST,
        FIRST,
        FIRST,
        FIRST,
        FIRST / 2,
        FIRST / 2,
        *[FIRST / 4] * 2,
    ]


def test_it_stays_a_number_that_float32_and_its_inverse_hold():
    scale = LossScale()
    for step in range(100):
        scale.note(step, scale.now, overflowed=True)
    assert scale.now == LEAST
    scale.go_back(0, {"scale": MOST, "finite_updates": GROWTH_UPDATES - 1, "skipped": 0})
    scale.note(0, MOST, overflowed=False)
    assert scale.now == MOST


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_been():
    kept, other = LossScale(), LossScale()
    for step in range(GROWTH_UPDATES - 1):
        kept.note(step, kept.now, overflowed=step == 0)
    other.note(0, other.now, overflowed=True)
    other.go_back(GROWTH_UPDATES - 1, kept.facts())
    for scale in (kept, other):
        for step in (GROWTH_UPDATES - 1, GROWTH_UPDATES):
            scale.note(step, scale.before(step), overflowed=False)
    assert other.now == kept.now == FIRST
    assert other.facts() == kept.facts()


@pytest.mark.parametrize(
    "facts",
    [None, {}, {"scale": 3.0, "finite_updates": 0, "skipped": 0}, {"scale": "2", "finite_updates": 0, "skipped": 0}],
)
def test_a_checkpoint_that_does_not_say_it_is_refused(facts):
    with pytest.raises(StorageError, match="does not say the scale of the loss"):
        LossScale().go_back(0, facts)


@pytest.mark.parametrize("number", [0.0, -2.0, 3.0, torch.inf, torch.nan, 2.0**-65, 2.0**128])
def test_a_number_that_is_no_scale_is_refused(number):
    with pytest.raises(ProtocolError, match="a scale is a power of 2 from"):
        check_scale(number)
    check_scale(FIRST)
