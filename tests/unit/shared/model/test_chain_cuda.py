"""Chains and random state on a GPU, if there is one."""

import pytest
import torch
from torch import Tensor

from shared.model import zoo
from shared.model.chain import Chain, build_chain
from shared.model.random_state import random_state
from shared.model.spec import parse_example

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NETWORKS = [(zoo.residual_cnn, "8x1x16x16"), (zoo.bilstm, "8x12:int64<1000"), (zoo.mlp, "8x64")]


def run_chain(chain: Chain, value: Tensor) -> Tensor:
    for block in chain.blocks:
        value = block.module(value)
    return value


@pytest.mark.parametrize(("factory", "example"), NETWORKS)
@pytest.mark.parametrize("built_there", [True, False])
def test_a_chain_is_its_module_on_the_device(factory, example, built_there):
    module, inputs = factory(), parse_example(example)
    if built_there:
        chain = build_chain(module.cuda(), inputs.cuda())
    else:
        chain = build_chain(module, inputs)
        for block in chain.blocks:
            block.module.cuda()
    assert all(value.is_cuda for block in chain.blocks for value in block.named_parameters().values())
    assert all(value.is_cuda for block in chain.blocks for value in block.named_buffers().values())
    on_cpu = [block.draws_random for block in build_chain(factory(), inputs).blocks]
    assert [block.draws_random for block in chain.blocks] == on_cpu
    buffers = [buffer.clone() for buffer in module.buffers()]
    with random_state("device"):
        expected = module.train()(inputs.cuda())
    for buffer, values in zip(module.buffers(), buffers, strict=True):
        buffer.copy_(values)
    with random_state("device"):
        assert torch.equal(run_chain(chain, inputs.cuda()), expected)


def test_random_state_is_put_in_force_and_put_back_on_every_device():
    torch.cuda.init()
    before = torch.cuda.get_rng_state_all()
    with random_state(1, 2):
        first = torch.rand(8, device="cuda")
    assert all(map(torch.equal, torch.cuda.get_rng_state_all(), before))
    torch.rand(3, device="cuda")
    with random_state(1, 2):
        assert torch.equal(torch.rand(8, device="cuda"), first)
