"""A chain of blocks is its module, bit for bit, at every cut."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.model.chain import build_chain
from shared.model.spec import TensorSpec
from tests.support.examples import examples
from tests.support.models.chains import MODULES, WIDTH, example, generated, names, run_chain

torch.set_num_threads(1)


@settings(deadline=None, max_examples=examples(60))
@given(module=MODULES, cut=st.integers(0, 20), batch_size=st.integers(2, 5))
def test_two_sides_of_any_cut_train_as_one_process(module, cut, batch_size):
    """Outputs, gradients and buffers are the module's, though only the feature and its gradient cross."""
    chain = build_chain(module, example())
    cut %= len(chain.blocks) + 1
    inputs = example(batch_size, WIDTH)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def clear() -> None:
        module.zero_grad(set_to_none=True)
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])

    def results(output: Tensor) -> list[Tensor]:
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        return [output.detach(), *(g.clone() for g in grads), *(b.clone() for b in module.buffers())]

    module.train()
    torch.manual_seed(5)
    output = module(inputs.clone())
    output.square().sum().backward()
    expected = results(output)
    clear()

    for block in chain.blocks:
        block.module.train()
    torch.manual_seed(5)
    feature = inputs.clone()
    for block in chain.blocks[:cut]:
        feature = block.module(feature)
    received = feature.detach().clone().requires_grad_(feature.requires_grad)
    value = received.clone() if cut < len(chain.blocks) and chain.blocks[cut].modifies_input else received
    for block in chain.blocks[cut:]:
        value = block.module(value)
    value.square().sum().backward()
    if feature.requires_grad:
        feature.backward(received.grad)
    found = results(value)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))

    clear()
    module.eval()
    torch.manual_seed(6)
    expected_evaluation = module(inputs.clone())
    clear()
    for block in chain.blocks:
        block.module.train()
    for block in chain.blocks:
        block.module.eval()
    torch.manual_seed(6)
    assert torch.equal(run_chain(chain, inputs.clone()), expected_evaluation)


@settings(deadline=None, max_examples=examples(40))
@given(MODULES)
def test_blocks_share_out_the_state_dict(module):
    chain = build_chain(module, example())
    keys = [key for block in chain.blocks for key in (*block.named_parameters(), *block.named_buffers())]
    assert sorted(keys) == sorted(module.state_dict())
    parameters = {name: p for block in chain.blocks for name, p in block.named_parameters().items()}
    assert all(parameters[name] is parameter for name, parameter in module.named_parameters())
    assert len(set(names(chain))) == len(chain.blocks)
    assert [block.index for block in chain.blocks] == list(range(len(chain.blocks)))
    for block in chain.blocks:
        tied = [parameter for kept in block.tied_parameters().values() for parameter in kept.values()]
        assert {id(p) for p in block.module.parameters()} == {
            id(p) for p in (*block.named_parameters().values(), *tied)
        }


@settings(deadline=None, max_examples=examples(40))
@given(MODULES, st.booleans(), st.integers(0, 99))
def test_building_a_chain_leaves_no_trace(module, training, seed):
    """Buffers, gradients, modes, random state and attributes are unchanged."""
    module.train(training)
    next(module.modules()).zero_grad()
    for place, part in enumerate(module.modules()):
        part.training = (place + seed) % 3 > 0
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(seed)

    def state() -> list[object]:
        return [
            [(name, id(buffer), buffer.tolist()) for name, buffer in module.named_buffers()],
            [(name, id(p), p.tolist(), id(p.grad), p.grad.sum().item()) for name, p in module.named_parameters()],
            [part.training for part in module.modules()],
            [sorted(vars(part)) for part in module.modules()],
            list(module.state_dict()),
            torch.get_rng_state().tolist(),
        ]

    before = state()
    chain = build_chain(module, example())
    assert state() == before
    own = set(module.modules())
    assert all(block.module.training == module.training for block in chain.blocks if block.module not in own)


@settings(deadline=None, max_examples=examples(30))
@given(MODULES)
def test_features_are_what_crosses_each_cut(module):
    chain = build_chain(module, example())
    module.eval()
    value = example()
    assert len(chain.features) == len(chain.blocks) + 1
    for block, (spec,) in zip(chain.blocks, chain.features, strict=False):
        assert TensorSpec.of(value) == spec
        value = block.module(value)
    assert (TensorSpec.of(value),) == chain.outputs


@settings(deadline=None, max_examples=examples(30))
@given(generated(), st.booleans())
def test_moving_blocks_moves_the_module_and_the_other_way_round(module, by_block):
    """A conversion stands for a move to another device: both replace buffers."""
    chain = build_chain(module, example())
    for part in [block.module for block in chain.blocks] if by_block else [module]:
        part.double()
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    for block in chain.blocks:
        assert {value.dtype for value in block.named_parameters().values()} == {torch.float64}
        assert {buffer.dtype for buffer in block.named_buffers().values()} <= {torch.float64, torch.int64}
    held = {id(buffer) for block in chain.blocks for buffer in block.named_buffers().values()}
    assert held == {id(buffer) for name, buffer in module.named_buffers() if name in module.state_dict()}
    buffers = [buffer.clone() for buffer in module.buffers()]
    torch.manual_seed(1)
    expected = module.train()(example().double())
    for buffer, values in zip(module.buffers(), buffers, strict=True):
        buffer.copy_(values)
    torch.manual_seed(1)
    assert torch.equal(run_chain(chain, example().double()), expected)
