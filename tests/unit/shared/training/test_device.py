"""Settings that a GPU needs and a CPU does not, as far as a test without a GPU can see them (see
`test_cuda_runs.py`)."""

import os

import pytest
import torch
from torch import nn

from shared.model.chain import build_chain
from shared.registry import OPTIMIZERS, OptimizerConfig
from shared.training import block_state
from shared.training.device import prepare_device
from shared.training.held_blocks import HeldBlocks
from shared.training.optimizers import build_optimizer, state_layout
from shared.training.recipe import Recipe, ScheduleConfig

CPU, META, CUDA = torch.device("cpu"), torch.device("meta"), torch.device("cuda")


@pytest.fixture
def settings(monkeypatch):
    """Return a function that reads torch's settings. They are restored at the end."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    def now():
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            torch.get_float32_matmul_precision(),
            os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        )

    before = now()
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    yield now
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before[2:5]
    torch.set_float32_matmul_precision(before[5])
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_a_gpu_is_told_to_compute_the_same_bits_every_time_and_all_of_them(settings):
    prepare_device(CUDA, deterministic=True)
    assert settings() == (True, True, True, False, False, "highest", ":4096:8")


@pytest.mark.parametrize(("device", "deterministic"), [(CPU, True), (CUDA, False)])
def test_otherwise_a_process_computes_as_its_user_has_set_it(settings, device, deterministic):
    before = settings()
    prepare_device(device, deterministic=deterministic)
    assert settings() == before


class Scaled(nn.Module):
    """A block with a parameter that has no dimension, like a temperature or a gain."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, value):
        return value * self.gain


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_moments_of_a_parameter_without_dimensions_lie_beside_it_after_a_move(name):
    config = OptimizerConfig(name=name, momentum=0.9 if name in ("sgd", "rmsprop") else 0.0)

    def built():
        block = build_chain(nn.Sequential(Scaled(), nn.Linear(4, 4)), torch.ones(2, 4)).blocks[0]
        return block, build_optimizer(block.named_parameters(), config)

    here, optimizer = built()
    here.module(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = block_state.collect(here, optimizer)
    assert any(name.startswith("optimizer/") for name in state)

    there, arriving = built()
    there.module.to(META)
    block_state.restore(there, arriving, config, state)
    for parameter in there.named_parameters().values():
        layout = state_layout(parameter, config)
        for key, tensor in arriving.state[parameter].items():
            assert tensor.device == (CPU if layout[key].on_host else META), f"{name}: {key}"


class Noted(nn.Linear):
    """A layer that records the effect of `Module.to` on its weights."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.placed = []

    def _apply(self, function, recurse=True):
        self.placed.append(function(torch.empty(0, device=CPU)).device)
        return super()._apply(function, recurse)


@pytest.mark.parametrize("taken_in", [False, True])
def test_a_block_that_leaves_is_put_back_on_the_host_and_one_that_stays_is_not_touched(taken_in):
    layers = [Noted(4, 4) for _ in range(3)]
    chain = build_chain(nn.Sequential(*layers), torch.ones(2, 4))
    recipe = Recipe(
        optimizer=OptimizerConfig(), schedule=ScheduleConfig(), loss="mse", seed=0, steps_per_epoch=1, total_steps=1
    )
    held = HeldBlocks(chain, recipe, CPU, range(1 if taken_in else 3))
    if taken_in:
        held.take_in(range(3), {})
    for layer in layers:
        layer.placed.clear()
    if taken_in:
        held.let_go()
    else:
        held.hold(range(1), {})
    assert [layer.placed for layer in layers] == [[], [CPU], [CPU]]
