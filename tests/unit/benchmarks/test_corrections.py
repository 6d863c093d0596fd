"""The plain delayed loop by which corrections of late gradients are compared."""

import pytest
import torch
from torch import nn

from benchmarks import corrections
from benchmarks.corrections import ROWS, STALENESS, WEIGHT_DECAY, Correction, Delayed, bound

RATE = 0.1


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def trained(correction, steps):
    """Return the weights after every step on one batch, under an error gradient of ones."""
    block = linear()
    late, pictures, weights = Delayed(block, correction), torch.ones(4, 3), []
    for _ in range(steps):
        late.take(pictures, torch.ones(4, 2), RATE)
        weights.append(block.weight.detach().clone())
    return weights


@pytest.mark.parametrize("correction", [one for one in ROWS.values() if one is not None])
def test_the_first_update_comes_with_the_gradient_of_k_batches_before(correction):
    weights = trained(correction, STALENESS + 1)
    assert all(torch.equal(one, linear().weight) for one in weights[:STALENESS])
    assert not torch.equal(weights[STALENESS], linear().weight)


def test_without_lateness_and_correction_it_is_torchs_sgd(monkeypatch):
    monkeypatch.setattr(corrections, "STALENESS", 0)
    block = linear()
    optimizer = torch.optim.SGD(block.parameters(), lr=RATE, momentum=0.9, weight_decay=WEIGHT_DECAY)
    for weight in trained(Correction(), 5):
        optimizer.zero_grad()
        block(torch.ones(4, 3)).backward(torch.ones(4, 2))
        optimizer.step()
        assert torch.allclose(weight, block.weight, atol=1e-6)


def test_features_are_those_of_predicted_weights_and_the_own_ones_stay():
    block = linear()
    late, pictures = Delayed(block, Correction(lead=1.0)), torch.ones(4, 3)
    for _ in range(STALENESS + 1):
        late.take(pictures, torch.ones(4, 2), RATE)
    before = block.weight.detach().clone()
    moved = late.forward(pictures, RATE)
    assert torch.equal(before, block.weight)
    assert not torch.allclose(moved, block(pictures))


def test_what_an_update_lacked_is_in_a_quadratic_loss_as_good_as_a_prediction():
    assert bound(Correction(lead=1.0)) == bound(Correction(lacking=5.0)) > 1.5 * bound(Correction())
    long = [bound(ROWS[name]) for name in ROWS if name.endswith("0.99")]
    assert min(long) > 4 * bound(Correction(lead=1.0))
    assert max(long) < 1.1 * min(long)
