"""The clipping of all gradients by one norm: the bits of torch's, from norms that owners tell each other."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.training.clipping import NO_GRADIENT, Clipping
from tests.support.placed import built, chain_of

NAMES = [name for name, _ in built("dropping").named_parameters()]


@given(st.sets(st.sampled_from(NAMES)), st.floats(1e-3, 1e3), st.sampled_from([1e-4, 1.0, 1e4]), st.integers(0, 99))
def test_it_is_torchs_whatever_gradients_are_there(missing, clip_norm, size, seed):
    torch.manual_seed(seed)
    module = built("dropping")
    for name, parameter in module.named_parameters():
        parameter.grad = None if name in missing else torch.randn_like(parameter) * size
    chain = chain_of(copy.deepcopy(module))
    gradients = {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}
    clipping = Clipping(chain, clip_norm)
    norms = {}
    for block in chain.blocks:
        norms |= clipping.parted([block.index], clipping.norms(block.index, gradients))
    clipping.scale(gradients.values(), clipping.coefficient(norms))
    torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, module.get_parameter(name).grad), name


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_gradient_that_is_no_number_has_an_infinite_norm_and_scales_all_to_nothing(wrong):
    chain = chain_of(built("dropping"))
    clipping = Clipping(chain, 1.0)
    norms = {block.index: clipping.norms(block.index, {}) for block in chain.blocks}
    name = next(iter(chain.blocks[0].named_parameters()))
    norms[0] = clipping.norms(0, {name: torch.tensor([1.0, wrong])})
    assert norms[0].tolist() == [torch.inf, NO_GRADIENT]
    assert clipping.coefficient(norms).item() == 0.0


def test_without_a_gradient_nothing_is_scaled():
    chain = chain_of(built("dropping"))
    clipping = Clipping(chain, 1.0)
    assert clipping.coefficient({block.index: clipping.norms(block.index, {}) for block in chain.blocks}).item() == 1.0
