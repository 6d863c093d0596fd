"""Batches of several lengths over links that are lost at any packet: the weights are those of one process."""

import copy
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.model.chain import build_chain
from tests.support.examples import examples
from tests.support.linked import LinkedSession
from tests.support.placed import in_process, recipe, state_of
from tests.support.placements import chains
from tests.support.plain import assert_same_bits
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
LONGEST = 9


class Mean(nn.Module):
    """The mean over time, of a layer more."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x).tanh().mean(1)


make_chain = partial(build_chain, example=torch.zeros(8, LONGEST, dtype=torch.int64), length_varies=True)


@settings(max_examples=examples(20), deadline=None)
@given(
    chains(),
    st.lists(st.integers(1, LONGEST), min_size=5, max_size=5),
    st.lists(st.integers(0, 60), max_size=8),
    st.integers(0, 1 << 30),
)
def test_each_step_has_the_length_of_its_batch_whatever_is_lost(placement, lengths, losses, seed):
    placement, dice = replace(placement, staleness=0), random.Random(seed)
    module = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), Mean(), nn.Linear(8, 3))
    size = placement.batch_size
    batches = [(torch.randint(11, (size, length)), torch.randint(3, (size,))) for length in lengths]

    async def main() -> LinkedSession:
        session = LinkedSession(
            module,
            placement,
            recipe("sgd"),
            seconds=lambda: dice.uniform(0, 0.05),
            losses=losses,
            make_chain=make_chain,
        )
        await session.train(batches)
        return session

    session = run_virtually(main)
    simulated = {worker: make_chain(copy.deepcopy(module)) for worker in placement.workers}
    in_process(simulated, placement, recipe("sgd")).train(0, len(batches), iter(batches))
    assert_same_bits(state_of(simulated, placement), state_of(session.chains, placement))
