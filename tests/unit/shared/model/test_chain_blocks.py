"""The blocks of a module, declared by it or found by tracing."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.chain import build_chain
from tests.support.models.chains import WIDTH, Generated, Residual, Torn, example, names, run_chain

torch.set_num_threads(1)


def test_a_sequential_has_its_children_as_blocks():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.5), Residual())
    chain = build_chain(module, example())
    assert names(chain) == ["0", "1", "2", "3"]
    assert [block.module for block in chain.blocks] == list(module)
    assert [block.modifies_input for block in chain.blocks] == [False, True, False, False]
    assert [block.draws_random for block in chain.blocks] == [False, False, True, False]


def test_a_first_block_without_weights_would_be_raw_input():
    chain = build_chain(nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(4, 3), nn.ReLU()), example(5, 2, 2))
    assert names(chain) == ["2", "3"]
    assert [spec.shape for (spec,) in chain.features] == [(5, 2, 2), (5, 3), (5, 3)]


def test_an_attribute_named_blocks_is_no_declaration():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Residual(), Residual())
            self.head = nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks(x))

    assert names(build_chain(Model(), example())) == ["blocks.0", "blocks.1", "head"]


def test_declared_blocks_may_be_made_of_submodules():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.act = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU()

        def blocks(self) -> list[nn.Module]:
            return [nn.Sequential(self.first, self.act), self.act, nn.Sequential(self.second, self.act), self.act]

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.second(self.act(self.first(x))))

    chain = build_chain(Model(), example())
    assert names(chain) == ["first", "act", "second", "blocks.3"]
    assert list(chain.blocks[2].named_parameters()) == ["second.weight", "second.bias"]


class Mnist(nn.Module):
    """The style of a first PyTorch example: everything functional, the batch size read in the first line."""

    def __init__(self, training_matters: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.fc1, self.fc2 = nn.Linear(8 * 2 * 2, 16), nn.Linear(16, 10)
        self.training_matters = training_matters

    def forward(self, x: Tensor, temperature: float | None = None) -> Tensor:
        batch = x.shape[0]
        torch._assert(x.dim() == 4, "images only")
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu_(self.conv2(x)), 2)
        x = F.dropout(x.view(batch, -1), training=self.training)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.3, self.training and self.training_matters)
        x = self.fc2(x.view(batch, 16))
        if temperature is not None:
            x = x / temperature
        return F.log_softmax(x, dim=1)


def test_functional_style_is_cut_after_activations():
    chain = build_chain(Mnist(), example(2, 1, 8, 8))
    assert names(chain) == ["conv1", "conv2", "fc1", "fc2"]
    assert [spec.shape for (spec,) in chain.features] == [(2, 1, 8, 8), (2, 4, 6, 6), (2, 32), (2, 16), (2, 10)]
    assert [block.draws_random for block in chain.blocks] == [False, True, True, False]
    assert [b.draws_random for b in build_chain(Mnist(False), example(2, 1, 8, 8)).blocks] == [
        False,
        True,
        False,
        False,
    ]


def test_functional_dropout_follows_the_mode_of_block_and_module():
    module = Mnist()
    chain = build_chain(module, example(2, 1, 8, 8))
    block, inputs = chain.blocks[1].module, example(2, 4, 6, 6)
    for switch in (block, module):
        switch.eval()
        assert torch.equal(block(inputs), block(inputs))
        switch.train()
        assert not torch.equal(block(inputs), block(inputs))


def test_a_module_may_hold_submodules_in_a_mode():
    class Frozen(Generated):
        def train(self, mode: bool = True) -> "Frozen":
            super().train(mode)
            self.layers["1"].eval()
            return self

    chain = build_chain(Frozen(["linear", "norm", "linear", "dropout"]), example())
    assert names(chain) == ["layers.0", "layers.2"]
    for block in chain.blocks:
        block.module.train()
    norm, dropout = chain.module.get_submodule("layers.1"), chain.module.get_submodule("layers.3")
    assert (norm.training, dropout.training) == (False, True)


def test_a_block_that_is_whole_somewhere_is_whole_everywhere():
    class Bottleneck(nn.Module):
        def __init__(self, skip: bool) -> None:
            super().__init__()
            self.skip = skip
            self.layers = nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.Linear(3, WIDTH), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layers(x) if self.skip else self.layers(x)

    class Stage(nn.Module):
        def __init__(self, skips: list[bool]) -> None:
            super().__init__()
            self.parts = nn.Sequential(*(Bottleneck(skip) for skip in skips))
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.parts(x))

    class Model(nn.Module):
        def __init__(self, *stages: list[bool]) -> None:
            super().__init__()
            self.stages = nn.ModuleList(Stage(skips) for skips in stages)

        def forward(self, x: Tensor) -> Tensor:
            for stage in self.stages:
                x = stage(x)
            return x

    whole = build_chain(Model([False, True], [False]), example())
    assert names(whole) == ["stages.0.parts.0", "stages.0.parts.1", "stages.1"]
    opened = build_chain(Model([False], [False]), example())
    assert names(opened) == [f"stages.{stage}.parts.0.layers.{layer}" for stage in (0, 1) for layer in (0, 2)]


def test_submodules_that_cannot_be_traced_are_blocks():
    chain = build_chain(Generated(["opaque", "linear", "noisy", "counting"]), example())
    assert names(chain) == ["layers.0", "layers.1", "layers.2", "layers.3"]
    assert [block.draws_random for block in chain.blocks] == [False, False, True, False]
    assert chain.blocks[3].named_buffers().keys() == {"layers.3.mean"}


def test_gradients_that_a_submodule_switches_off_stay_off():
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(nn.Linear(WIDTH, WIDTH), Residual())

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return self.parts(x)

    module = nn.Sequential(nn.Sequential(Backbone(), nn.Linear(WIDTH, WIDTH)))
    chain = build_chain(module, example())
    assert names(chain) == ["0.0", "0.1"]
    run_chain(chain, example()).sum().backward()
    assert [parameter.grad is None for parameter in module.parameters()] == [True] * 6 + [False] * 2


def test_a_tied_weight_belongs_to_the_first_of_its_blocks():
    module = Generated(["linear", "linear", "relu", "linear", "linear"])
    module.layers["3"].weight = module.layers["1"].weight
    chain = build_chain(module, example())
    assert names(chain) == ["layers.0", "layers.1", "layers.3", "layers.4"]
    assert list(chain.blocks[1].named_parameters()) == ["layers.1.weight", "layers.1.bias"]
    assert list(chain.blocks[2].named_parameters()) == ["layers.3.bias"]
    assert chain.blocks[2].tied_parameters() == {1: {"layers.1.weight": module.layers["1"].weight}}
    assert chain.together == ((1, 2),)
    assert [cut for cut in range(5) if chain.parts_tied(0, cut)] == [2]


def test_a_weight_that_several_layers_use_keeps_them_in_one_block():
    """The sum of three gradients depends on the order, and that of a part of them would be another."""
    module = Generated(["linear", "linear", "linear", "relu", "linear", "linear"])
    module.layers["2"].weight = module.layers["4"].weight = module.layers["1"].weight
    chain = build_chain(module, example())
    assert names(chain) == ["layers.0", "layers.1", "layers.5"]
    assert list(chain.blocks[1].named_parameters())[:2] == ["layers.1.weight", "layers.1.bias"]
    assert chain.together == ()
    module.layers["4"].weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    assert "layers.4.weight" in chain.blocks[1].named_parameters()


def test_blocks_that_are_tied_in_turn_are_one_group():
    module = Generated(["linear"] * 5)
    module.layers["2"].weight = module.layers["0"].weight
    module.layers["4"].bias = module.layers["2"].bias
    assert build_chain(module, example()).together == ((0, 2, 4),)


def test_weights_of_the_module_itself_are_weights_of_a_block():
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.ones(3, WIDTH)), nn.Parameter(torch.ones(3, 2))
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("offset", torch.ones(2), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.size(0))
            return torch.relu(F.linear(x, self.weight)) @ self.head + self.offset

    module = Functional()
    chain = build_chain(module, example())
    assert names(chain) == ["weight", "head"]
    assert [list(block.named_parameters()) for block in chain.blocks] == [["weight"], ["head"]]
    assert [list(block.named_buffers()) for block in chain.blocks] == [["seen"], []]
    run_chain(chain, example())
    assert module.seen == 4
    module.seen = torch.tensor(10)
    run_chain(chain, example())
    assert chain.blocks[0].named_buffers()["seen"] == 14


def test_asking_for_sizes_is_no_skip():
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(Residual(), Residual())

        def forward(self, x: Tensor) -> Tensor:
            torch._assert(x.dim() == 2, f"rows, not {x.shape}")
            return self.parts(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x))

    assert names(build_chain(Model(), example())) == ["encoder.parts.0", "encoder.parts.1", "head"]


def test_the_batch_size_crosses_with_a_tensor_that_has_it():
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            batch = x.size()[0]
            first, second, third, fourth = self.linears
            x = second(first(x))  # N x 5 x WIDTH
            x = third(x.transpose(0, 1)).relu()
            x = fourth(x).transpose(0, 1)
            return x.reshape(batch, -1)

    chain = build_chain(Turning(), example(4, 5, WIDTH))
    assert names(chain) == ["linears.0", "linears.1", "linears.2"]


def test_another_size_than_the_batch_is_asked_of_the_tensor_that_crosses():
    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            steps = x.transpose(0, 1).size(0)
            x = self.second(self.first(x).relu())
            return self.third(x.mean(1) * steps)

    chain = build_chain(Timed(), example(4, 5, WIDTH))
    assert names(chain) == ["first", "second", "third"]
    assert torch.equal(run_chain(chain, example(3, 7, WIDTH)), chain.module(example(3, 7, WIDTH)))


def test_a_module_of_two_inputs_may_be_opened():
    class Merge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.second(self.first(x + y).relu())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.merge = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Merge()

        def forward(self, x: Tensor) -> Tensor:
            return self.merge(self.left(x), self.right(x))

    assert names(build_chain(Model(), example())) == ["left", "right", "merge.first", "merge.second"]


def test_the_example_is_not_written_to():
    class InPlace(Generated):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(2))

    inputs = example()
    for module in (InPlace(["linear", "linear"]), Torn(["relu in place", "linear"])):
        chain = build_chain(module, inputs)
        assert chain.blocks[0].modifies_input
        assert torch.equal(inputs, example())


def test_a_container_that_cannot_be_traced_leaves_others_open():
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:  # noqa: ARG001
        return output if output.sum() > 0 else -output

    parts = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(2)))
    parts[0].register_forward_hook(hook)
    assert names(build_chain(nn.Sequential(parts), example())) == ["0.0", "0.1.0", "0.1.1"]


def test_a_normalisation_of_planes_is_no_beginning_of_a_block():
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm([2, 4, 4]), nn.ReLU(), nn.Conv2d(2, 2, 1))
    assert names(build_chain(nn.Sequential(layers), example(2, 1, 6, 6))) == ["0.0", "0.3"]


def test_the_memory_format_is_kept():
    inputs = example(2, 3, 8, 8).to(memory_format=torch.channels_last)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.Conv2d(4, 4, 3))
    module = module.to(memory_format=torch.channels_last)
    chain = build_chain(module, inputs)
    feature = chain.blocks[0].module(inputs)
    assert feature.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(run_chain(chain, inputs), module(inputs))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_any_batch_size_may_be_the_example(batch_size):
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    assert build_chain(module, example(batch_size, WIDTH)).features[1][0].shape == (batch_size, WIDTH)


def test_frozen_is_another_thing_than_without_parameters():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    module[0].requires_grad_(False)
    chain = build_chain(module, example())
    assert [block.trainable for block in chain.blocks] == [False, False, True]
    assert [block.frozen for block in chain.blocks] == [True, False, False]
    module[2].weight.requires_grad_(False)
    assert chain.blocks[2].trainable


@pytest.mark.slow
def test_other_threads_may_run_modules_meanwhile():
    """torch.fx replaces methods of nn.Module for the whole process while it traces."""
    running = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).eval()
    expected = running(example())
    done, wrong = threading.Event(), []

    def run() -> None:
        while not done.is_set():
            try:
                if not torch.equal(running(example()), expected):
                    wrong.append("another result")
            except Exception as error:
                wrong.append(repr(error))

    def build(results: list[list[str]]) -> None:
        results.extend(names(build_chain(Generated(["linear", "residual"] * 3), example())) for _ in range(10))

    results: list[list[str]] = []
    runner = threading.Thread(target=run)
    builders = [threading.Thread(target=build, args=(results,)) for _ in range(2)]
    for thread in (runner, *builders):
        thread.start()
    for thread in builders:
        thread.join()
    done.set()
    runner.join()
    assert not wrong
    assert results == [[f"layers.{place}" for place in range(6)]] * 20
