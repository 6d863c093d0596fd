"""The report on a model's blocks."""

from torch import nn

from shared.model.chain import build_chain
from shared.model.report import describe_chain
from tests.support.models.chains import WIDTH, example


def test_a_report_has_one_row_a_block():
    module = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU())
    linear, relu = describe_chain(build_chain(module, example()), lambda parameters: 7 * len(list(parameters)))
    assert (linear.block, linear.name, linear.parameters, linear.parameter_bytes, linear.trainable) == (
        0,
        "0",
        28,
        112,
        True,
    )
    assert (linear.optimizer_bytes, relu.optimizer_bytes) == (14, 0)
    assert (relu.block, relu.parameters, relu.trainable) == (1, 0, False)
    assert (relu.feature_shapes, relu.feature_bytes) == (((4, 4),), 64)
