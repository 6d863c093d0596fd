"""Residuals in memory of their own: neither a gradient nor bytes on their way are written to."""

import torch

from shared.codec import codec_by_name
from shared.execution.residuals import Residuals


def test_a_codec_of_a_gradients_own_type_leaves_nothing_and_its_bytes_stay_as_they_are():
    residuals, gradient = Residuals(), torch.randn(5).half()
    for _ in range(2):
        wanted = residuals.added(0, {"gradient/weight": gradient})
        encoded = codec_by_name("fp16").encode(wanted["gradient/weight"])
        residuals.note(0, wanted, {"gradient/weight": codec_by_name("fp16").decode(encoded)})
        assert torch.equal(codec_by_name("fp16").decode(encoded), gradient)


def test_a_gradient_is_not_written_to_where_a_codec_takes_something_from_it():
    residuals, gradient = Residuals(), torch.randn(5)
    before = gradient.clone()
    sums = torch.zeros(5)
    for _ in range(3):
        sums += residuals.sent("uniform2", 0, {"gradient/weight": gradient})["gradient/weight"]
        assert torch.equal(gradient, before)
    assert (sums - 3 * gradient).abs().max() <= (gradient.max() - gradient.min()), "one step's loss at most"
