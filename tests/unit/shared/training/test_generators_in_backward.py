"""A backward that runs a forward again sets the process's generators, and no other thread draws from them meanwhile."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shared.model.chain import build_chain
from shared.model.random_state import random_state
from shared.training.recipe import OptimizerConfig, Recipe, ScheduleConfig
from shared.training.stage import lone_stage

WIDTH = 8
RECIPE = Recipe(
    optimizer=OptimizerConfig(learning_rate=0.1),
    schedule=ScheduleConfig(),
    loss="mse",
    seed=3,
    steps_per_epoch=2,
    total_steps=2,
)


class Drawing(threading.Thread):
    """Draws numbers from the default generator."""

    def run(self):
        with random_state("other"):
            self.drawn = torch.rand(4)


class Again(nn.Module):
    """Runs a forward again in its backward; while it does so, it begins another thread that draws numbers."""

    def __init__(self, is_checkpointed: bool, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.is_checkpointed, self.reentrant = nn.Linear(WIDTH, WIDTH), is_checkpointed, reentrant
        self.backwards, self.other, self.in_backward, self.waits = 0, None, False, False
        if not is_checkpointed:
            self.layer.weight.register_hook(self._begin)

    def forward(self, value):
        value = self.layer(value)
        return checkpoint(self._drawn, value, use_reentrant=self.reentrant) if self.is_checkpointed else value

    def _drawn(self, value):
        if self.in_backward:
            self._begin()
        return nn.functional.dropout(value, 0.5)

    def _begin(self, *_):
        self.backwards += 1
        if self.backwards == 2:
            self.other = Drawing()
            self.other.start()
            self.other.join(0.3 if self.is_checkpointed else 30)
            self.waits = self.other.is_alive()


def second_backward(*of):
    chain = build_chain(nn.Sequential(nn.Linear(WIDTH, WIDTH), Again(*of)), torch.zeros(2, WIDTH))
    stage = lone_stage(chain, 0, 2, RECIPE, torch.device("cpu"))
    for step in range(2):
        graph = stage.forward(step, (torch.ones(4, WIDTH),), input_gradient=False)
        stage.blocks[1].module.in_backward = True
        stage.backward(graph, (torch.ones(4, WIDTH),))
        stage.blocks[1].module.in_backward = False
    return stage.blocks[1].module


@pytest.mark.parametrize("reentrant", [True, False])
def test_another_thread_waits_and_draws_its_own_numbers(reentrant):
    module = second_backward(True, reentrant)
    module.other.join()
    alone = Drawing()
    alone.run()
    assert torch.equal(module.other.drawn, alone.drawn)
    assert module.waits


def test_it_waits_for_no_other_backward():
    module = second_backward(False, False)
    assert not module.waits, "it goes on once the thread has drawn, or after 30 s"
