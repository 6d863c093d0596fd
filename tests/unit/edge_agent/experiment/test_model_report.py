"""The report on a model's blocks."""

import torch
from torch import nn

from edge_agent.experiment.model_report import SlotRow, describe_chain
from shared.model.chain import build_chain
from tests.support.models.chains import WIDTH, example
from tests.support.models.several import NamedEncoder


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
    assert relu.slots == (SlotRow((4, 4), "float32", 64, "block 1", raw=False),)


def test_a_report_names_the_origin_of_each_tensor_and_says_which_are_raw():
    batch = {"input_ids": torch.ones(4, 6, dtype=torch.int64), "attention_mask": torch.ones(4, 6, dtype=torch.bool)}
    rows = describe_chain(build_chain(NamedEncoder(), batch), lambda _: 0)
    shown = [[(slot.made_by, slot.shape, slot.raw) for slot in row.slots] for row in rows]
    mask = ("input attention_mask", (4, 6), True)
    assert shown == [
        [mask, ("block 0", (4, 6, 8), True)],
        [mask, ("block 1", (4, 1, 1, 6), True), ("block 1", (4, 6, 8), True)],
        [("block 2", (4, 8), False)],
        [("block 3", (4, 3), False)],
    ]
