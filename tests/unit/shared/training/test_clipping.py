"""The clipping of all gradients by one norm: the bits of torch's, from norms that owners tell each other."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shared.training.clipping import NO_GRADIENT, OVERFLOW, SKIP, Clipping
from shared.training.stage import lone_stage
from tests.support.placed import CPU, batch_of, built, chain_of, recipe
from tests.support.plain import assert_same_bits, plain_optimizer, plain_update

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


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_where_the_loss_is_scaled_it_skips_the_update_but_a_long_gradient_that_is_finite_does_not(clip_norm):
    chain = chain_of(built("dropping"))
    clipping = Clipping(chain, clip_norm, is_scaled=True)
    norms = {block.index: clipping.norms(block.index, {}) for block in chain.blocks}
    name = next(iter(chain.blocks[0].named_parameters()))
    for wrong in (torch.nan, torch.inf, -torch.inf):
        norms[0] = clipping.norms(0, {name: torch.tensor([1.0, wrong])})
        assert norms[0].tolist() == [OVERFLOW, NO_GRADIENT]
        assert clipping.coefficient(norms).item() == SKIP
    norms[0] = clipping.norms(0, {name: torch.tensor([3e38, 3e38])})
    assert norms[0].tolist() == [0.0 if clip_norm is None else torch.inf, NO_GRADIENT]
    assert clipping.coefficient(norms).item() == (1.0 if clip_norm is None else 0.0)


def test_without_a_gradient_nothing_is_scaled():
    chain = chain_of(built("dropping"))
    clipping = Clipping(chain, 1.0)
    assert clipping.coefficient({block.index: clipping.norms(block.index, {}) for block in chain.blocks}).item() == 1.0


def test_a_stage_alone_is_clipped_as_if_there_were_no_other_blocks():
    module, told = built("dropping"), recipe("sgd", clip_norm=0.05, clip="model")
    plain = copy.deepcopy(module)
    stage = lone_stage(chain_of(module), 0, len(module), told, CPU)
    inputs, labels = batch_of(0, 8)
    graph = stage.forward(0, (inputs,), input_gradient=False)
    stage.backward_from(graph, nn.functional.cross_entropy(graph.outputs[0], labels))
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        theirs.grad = ours.grad.clone()
    stage.update(0)
    plain_update([plain.parameters()], plain_optimizer(plain, told.optimizer), told, 0)
    assert_same_bits(dict(plain.state_dict()), dict(module.state_dict()))
