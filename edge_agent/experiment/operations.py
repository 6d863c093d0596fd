"""Multiplications and additions in each block of a chain: the time of a block is roughly in proportion to them."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from shared.model.chain import Chain
from shared.model.features import call_module
from shared.model.snapshot import unchanged


def block_operations(chain: Chain) -> list[float]:
    """Operations of each block's forward on a whole batch, as torch counts them: elementwise ones count nothing."""
    counted = []
    for block, inputs in zip(chain.blocks, chain.features, strict=False):
        device = next((parameter.device for parameter in block.module.parameters()), torch.device("cpu"))
        features = tuple(spec.example().to(device) for spec in inputs)
        counter = FlopCounterMode(display=False)
        with unchanged(block.module), torch.no_grad(), counter:
            call_module(block.module, features)
        counted.append(float(counter.get_total_flops()))
    return counted
