"""Chains of blocks: a chain is its module, bit for bit, and what cannot be one is refused."""

import inspect
import random
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.chain import Chain, build_chain
from shared.model.report import describe_chain
from shared.model.spec import TensorSpec

torch.set_num_threads(1)

WIDTH = 6


def example(*shape: int) -> Tensor:
    return TensorSpec(shape or (4, WIDTH), torch.float32).example()


def names(chain: Chain) -> list[str]:
    return [block.name for block in chain.blocks]


def run_chain(chain: Chain, value: Tensor) -> Tensor:
    for block in chain.blocks:
        value = block.module(value)
    return value


def line_of(thing: Callable[..., object], marker: str) -> str:
    """`file:line` of the one line of `thing` that ends in the comment `marker`."""
    lines, first = inspect.getsourcelines(thing)
    (found,) = (first + offset for offset, line in enumerate(lines) if line.rstrip().endswith(f"# {marker}"))
    return rf"test_chain\.py:{found}:"


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.linear(x)))


class Opaque(nn.Module):
    """Cannot be traced: what it does depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # opaque
            return self.linear(x)
        return -self.linear(x)


class Noisy(nn.Module):
    """Does other things in train mode than in eval mode, and draws tensors without looking at its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + torch.rand(WIDTH)
        return self.linear(x)


class Dithering(nn.Module):
    """Draws a tensor without looking at its input, in both modes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + torch.rand(WIDTH))


class Counting(nn.Module):
    """Keeps a buffer of its own up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.3),
    "residual": Residual,
    "opaque": Opaque,
    "noisy": Noisy,
    "dithering": Dithering,
    "counting": Counting,
    "sequence": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), Residual()),
}
OPERATIONS: dict[str, Callable[["Generated", Tensor], Tensor]] = {
    "functional relu": lambda _, x: F.relu(x),
    "functional dropout": lambda root, x: F.dropout(x, 0.4, root.training),
    "positional dropout": lambda root, x: F.dropout(x, training=root.training),
    "scale": lambda root, x: x * root.scale,
    "table": lambda root, x: x + root.table[: x.size(1)],
    "reshape": lambda _, x: x.view(x.size(0), 2, -1).flatten(1),
    "two paths": lambda _, x: torch.cat(x.chunk(2, dim=1)[::-1], dim=1),
    "constant": lambda _, x: x + torch.arange(WIDTH),
}


class Generated(nn.Module):
    """Layers and operations one after another."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds = kinds
        self.layers = nn.ModuleDict({str(place): LAYERS[kind]() for place, kind in enumerate(kinds) if kind in LAYERS})
        if "scale" in kinds:
            self.scale = nn.Parameter(torch.full((WIDTH,), 1.5))
        self.register_buffer("table", torch.arange(10.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for place, kind in enumerate(self.kinds):
            x = self.layers[str(place)](x) if kind in LAYERS else OPERATIONS[kind](self, x)
        return x


def valid(kinds: list[str]) -> list[str]:
    """Without what torch cannot differentiate: writing to a tensor that a backward needs."""
    writable = {"linear", "norm"}
    return [
        "relu" if kind == "relu in place" and before not in writable else kind
        for before, kind in zip(["", *kinds], kinds, strict=False)
    ]


@st.composite
def generated(draw: st.DrawFn) -> Generated:
    """Modules that can be cut: whatever comes first, two linear layers come last."""
    kinds = draw(st.lists(st.sampled_from([*LAYERS, *OPERATIONS]), min_size=2, max_size=8))
    torch.manual_seed(draw(st.integers(0, 99)))
    return Generated([*valid(kinds), "linear", "relu", "linear"])


class Torn(nn.Module):
    """As `Generated`, its layers in an nn.Sequential or in a list that it gives itself."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(LAYERS[kind]() for kind in kinds)

    def blocks(self) -> list[nn.Module]:
        return list(self.parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


@st.composite
def declared(draw: st.DrawFn) -> nn.Module:
    kinds = ["linear", *draw(st.lists(st.sampled_from(list(LAYERS)), min_size=1, max_size=5))]
    torch.manual_seed(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        return Torn(valid(kinds))
    return nn.Sequential(*(LAYERS[kind]() for kind in valid(kinds)))


MODULES = st.one_of(generated(), declared())


@settings(deadline=None, max_examples=60)
@given(module=MODULES, cut=st.integers(0, 20), batch_size=st.integers(2, 5))
def test_two_sides_of_any_cut_train_as_one_process(module, cut, batch_size):
    """Outputs, gradients and buffers are those of the module, though nothing but the feature and its gradient crosses."""
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


@settings(deadline=None, max_examples=40)
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
        assert {id(p) for p in block.module.parameters()} == {id(p) for p in block.named_parameters().values()}


@settings(deadline=None, max_examples=40)
@given(MODULES, st.booleans(), st.integers(0, 99))
def test_building_a_chain_leaves_no_trace(module, training, seed):
    """Buffers, gradients, modes, random state and attributes are as they were."""
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


@settings(deadline=None, max_examples=30)
@given(MODULES)
def test_features_are_what_crosses_each_cut(module):
    chain = build_chain(module, example())
    module.eval()
    value = example()
    assert len(chain.features) == len(chain.blocks) + 1
    for block, spec in zip(chain.blocks, chain.features, strict=False):
        assert TensorSpec.of(value) == spec
        value = block.module(value)
    assert TensorSpec.of(value) == chain.features[-1]


@settings(deadline=None, max_examples=30)
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
    assert [spec.shape for spec in chain.features] == [(5, 2, 2), (5, 3), (5, 3)]


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
    """The style of a first PyTorch example: everything functional, batch size asked for in the first line."""

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
    assert [spec.shape for spec in chain.features] == [(2, 1, 8, 8), (2, 4, 6, 6), (2, 32), (2, 16), (2, 10)]
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


def test_tied_weights_keep_their_layers_in_one_block():
    module = Generated(["linear", "linear", "relu", "linear", "linear"])
    module.layers["3"].weight = module.layers["1"].weight
    chain = build_chain(module, example())
    assert names(chain) == ["layers.0", "layers.1", "layers.4"]
    tied = chain.blocks[1]
    assert list(tied.named_parameters()) == ["layers.1.weight", "layers.1.bias", "layers.3.bias"]
    module.layers["3"].weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    assert "layers.3.weight" in tied.named_parameters()


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


def test_another_size_than_the_batch_crosses_as_a_value():
    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            steps = x.transpose(0, 1).size(0)
            x = self.second(self.first(x).relu())
            return self.third(x.mean(1) * steps)

    assert names(build_chain(Timed(), example(4, 5, WIDTH))) == ["first", "third"]


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

    assert names(build_chain(Model(), example())) == ["left", "merge.first", "merge.second"]


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
    assert build_chain(module, example(batch_size, WIDTH)).features[1].shape == (batch_size, WIDTH)


def test_frozen_is_another_thing_than_without_parameters():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    module[0].requires_grad_(False)
    chain = build_chain(module, example())
    assert [block.trainable for block in chain.blocks] == [False, False, True]
    assert [block.frozen for block in chain.blocks] == [True, False, False]
    module[2].weight.requires_grad_(False)
    assert chain.blocks[2].trainable


def test_a_report_has_one_row_a_block():
    module = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU())
    linear, relu = describe_chain(build_chain(module, example()))
    assert (linear.cut, linear.name, linear.parameters, linear.parameter_bytes, linear.trainable) == (
        1,
        "0",
        28,
        112,
        True,
    )
    assert (relu.cut, relu.parameters, relu.trainable) == (2, 0, False)
    assert (relu.feature_shape, relu.feature_bytes) == ((4, 4), 64)


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


class ControlFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.mean() > 0:  # control flow
            x = -x
        return self.second(x)


class TrainOnly(ControlFlow):
    def forward(self, x: Tensor) -> Tensor:  # train only
        if self.training:
            x = F.relu(x)
        return self.second(self.first(x))


class RandomSide(ControlFlow):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * random.random())


class Ungraded(ControlFlow):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x)  # no gradient
        return self.second(x)


class Replacing(ControlFlow):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:  # replacing
        self.last = self.last + 1
        return self.second(self.first(x))


def test_a_forward_that_cannot_be_traced_is_named_with_its_line():
    with pytest.raises(ModelError, match=line_of(ControlFlow, "control flow") + r".* control flow; .*blocks\(\)"):
        build_chain(ControlFlow(), example())
    with pytest.raises(ModelError, match=line_of(TrainOnly, "train only") + ".* train mode than in eval mode"):
        build_chain(TrainOnly(), example())
    with pytest.raises(ModelError, match=line_of(Ungraded, "no gradient") + r".* requires_grad_\(False\)"):
        build_chain(Ungraded(), example())
    with pytest.raises(ModelError, match=line_of(Replacing, "replacing") + r".* replaces the buffer 'last'"):
        build_chain(Replacing(), example())


def test_results_that_differ_from_run_to_run_are_refused():
    with pytest.raises(ModelError, match="RandomSide"):
        build_chain(RandomSide(), example())

    class RandomBlocks(Torn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + random.random()

    with pytest.raises(ModelError, match="RandomBlocks makes different results of the same input in train mode"):
        build_chain(RandomBlocks(["linear", "linear"]), example())


def test_blocks_that_are_not_the_module_are_refused():
    class Forgetful(Torn):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(super().forward(x))

    with pytest.raises(ModelError, match="do not give what Forgetful gives in train mode"):
        build_chain(Forgetful(["linear", "linear"]), example())

    class ForgetfulInEval(Torn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1.0 if self.training else 0.5)

    with pytest.raises(ModelError, match="do not give what ForgetfulInEval gives in eval mode; "):
        build_chain(ForgetfulInEval(["linear", "linear"]), example())


def test_blocks_that_keep_other_statistics_are_refused():
    class Twice(Torn):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.parts[1](self.parts[0](x))
            return super().forward(x)

    with pytest.raises(ModelError, match="do not give what Twice gives in train mode"):
        build_chain(Twice(["linear", "norm"]), example())


def test_a_block_that_stays_in_one_mode_is_refused():
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def train(self, mode: bool = True) -> "Wrapper":  # noqa: ARG002
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    class Stuck(Torn):
        def blocks(self) -> list[nn.Module]:
            return [Wrapper(part) for part in self.parts]

    with pytest.raises(ModelError, match="do not give what Stuck gives in eval mode"):
        build_chain(Stuck(["linear", "dropout"]), example())


def test_a_parameter_in_two_blocks_is_refused_by_name():
    shared = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(ModelError, match=r"parameter '0.weight' of Sequential is used by block '0' and by block '2'"):
        build_chain(nn.Sequential(shared, nn.ReLU(), shared), example())
    tied = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    tied[1].bias = tied[0].bias
    with pytest.raises(ModelError, match=r"parameter '0.bias' of Sequential is used by block '0' and by block '1'"):
        build_chain(tied, example())


def test_a_buffer_in_two_blocks_is_refused_by_name():
    norm = nn.BatchNorm1d(WIDTH, affine=False)
    with pytest.raises(ModelError, match=r"buffer '1.running_mean' .* block '1' and by block '3'"):
        build_chain(nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, nn.ReLU(), norm), example())


def test_state_outside_of_all_blocks_is_refused():
    class Spare(Torn):
        def blocks(self) -> list[nn.Module]:
            return list(self.parts)[:-1]

        def forward(self, x: Tensor) -> Tensor:
            return nn.Sequential(*self.blocks())(x)

    with pytest.raises(ModelError, match=r"parameter 'parts.2.weight' of Spare is used by no block"):
        build_chain(Spare(["linear", "linear", "linear"]), example())
    spare = Spare(["linear", "linear", "relu"])
    spare.register_buffer("scale", torch.ones(1))
    with pytest.raises(ModelError, match="buffer 'scale' of Spare is used by no block"):
        build_chain(spare, example())


def test_parameters_of_somebody_else_are_refused():
    class Foreign(Torn):
        def blocks(self) -> list[nn.Module]:
            return [*self.parts, nn.LayerNorm(WIDTH)]

        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(super().forward(x), (WIDTH,))

    with pytest.raises(ModelError, match="holds 'weight', which is not one of Foreign's own"):
        build_chain(Foreign(["linear", "linear"]), example())


def test_state_that_is_neither_parameter_nor_buffer_is_refused():
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"steps": 3}

    with pytest.raises(ModelError, match=r"'1._extra_state' in its state dict"):
        build_chain(nn.Sequential(nn.Linear(WIDTH, WIDTH), Extra(WIDTH, WIDTH)), example())


def test_blocks_pass_one_tensor():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(x), x

    with pytest.raises(ModelError, match="Two returns a tuple in train mode; it must return one tensor"):
        build_chain(Two(), example())

    class Add(nn.Linear):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            return super().forward(pair[0] + pair[1])

    with pytest.raises(
        ModelError, match="block '0' of Sequential returns a tuple in train mode; it must return one tensor"
    ):
        build_chain(nn.Sequential(Two(), Add(WIDTH, WIDTH)), example())


def test_one_block_is_no_chain():
    for module in (nn.Linear(WIDTH, WIDTH), Residual(), Generated(["linear", "relu", "dropout"])):
        with pytest.raises(ModelError, match=f"{type(module).__name__} cannot be cut"):
            build_chain(module, example())
    with pytest.raises(ModelError, match="single block"):
        build_chain(Torn(["linear"]), example())
    with pytest.raises(ModelError, match=line_of(Opaque.forward, "opaque")):
        build_chain(nn.Sequential(Opaque()), example())


def test_what_blocks_returns_must_be_modules():
    class Wrong(Torn):
        def blocks(self) -> list[str]:
            return ["0", "1"]

    with pytest.raises(ModelError, match=r"Wrong.blocks\(\) must return a list of modules"):
        build_chain(Wrong(["linear", "linear"]), example())


def test_a_forward_for_one_batch_size_is_refused():
    class FourOnly(Generated):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.view(4, WIDTH))

    module = FourOnly(["linear", "linear"])
    with pytest.raises(ModelError, match="FourOnly fails in eval mode with a batch of 2 on an input of shape"):
        build_chain(module, example())


def test_inputs_that_do_not_fit_are_refused():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    with pytest.raises(ModelError, match=r"Sequential fails in train mode on an input of shape \(4, 7\): RuntimeError"):
        build_chain(module, example(4, 7))
    for inputs in (torch.tensor(1.0), torch.ones(0, WIDTH)):
        with pytest.raises(ModelError, match="it must be a batch"):
            build_chain(module, inputs)


def test_parameters_without_a_shape_are_refused():
    with pytest.raises(ModelError, match=r"parameter '1.weight' has no shape yet"):
        build_chain(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LazyLinear(2)), example())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_refused():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    for module in (scripted, nn.Sequential(scripted, nn.Linear(WIDTH, WIDTH))):
        with pytest.raises(ModelError, match="TorchScript"):
            build_chain(module, example())
