"""Models that torch.compile or DataParallel has had: the module inside is what is divided; a compiled layer stays compiled."""

import pytest
import torch

from shared.model.build import build_checked_chain
from shared.model.snapshot import same_bits
from tests.support.models.compiled import WIDTH

MODELS = "tests.support.models.compiled"


def chain_of(name):
    return build_checked_chain(f"{MODELS}:{name}", {}, 0, torch.randn(3, WIDTH))


@pytest.mark.parametrize("name", ["compiled", "compiled_in_place", "parallel", "compiled_parallel"])
def test_a_wrapped_model_is_divided_as_the_one_inside_under_its_names(name):
    plain, wrapped = chain_of("plain"), chain_of(name)
    assert [block.name for block in wrapped.blocks] == [block.name for block in plain.blocks]
    ours, theirs = wrapped.module.state_dict(), plain.module.state_dict()
    assert list(ours) == list(theirs)
    assert all(map(same_bits, ours.values(), theirs.values()))


def test_a_compiled_layer_in_the_middle_stays_compiled():
    chain = chain_of("inner_compiled")
    assert len(chain.blocks) == 3
    assert "1._orig_mod.weight" in chain.module.state_dict()
