"""Labels of a peer that the model has no output for: they are told before a device computes with them."""

import pytest
import torch

from shared.errors import ProtocolError
from shared.execution.failures import computed_loss
from shared.registry import LossConfig


@pytest.mark.parametrize("labels", [[0, 1, 2], [-1, 0, 1]])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_classes_that_the_output_lacks_are_named(labels, device):
    def compute():
        raise IndexError("Target is out of bounds.")

    output = torch.zeros(3, 2, device=device)
    says = rf"labels are {min(labels)} to {max(labels)}; the model's output has 2 classes, so they must be 0 to 1"
    with pytest.raises(ProtocolError, match=says):
        computed_loss(compute, LossConfig(name="cross_entropy"), (output,), (torch.tensor(labels),))
