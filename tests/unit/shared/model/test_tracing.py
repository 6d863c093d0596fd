"""Questions that a forward asks are answered while it is traced, and its blocks are the module bit for bit at every cut."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from edge_agent.experiment.model_report import explain
from shared.errors import ModelError
from shared.model.chain import Chain, build_chain
from shared.model.features import Features, call_module
from shared.model.spec import TensorSpec
from shared.model.zoo import residual_cnn
from tests.support.models import asking
from tests.support.models.asking import VOCABULARY, WIDTH
from tests.support.models.chains import names, run_chain

torch.set_num_threads(1)

TOKENS = (4, 7)
SEQUENCES = (4, 7, WIDTH)
LAYERS = [f"encoder.layers.{index}" for index in range(3)]


def example(*shape: int) -> Tensor:
    """Tokens, where two sizes are given; else numbers."""
    if len(shape) == 2:
        return TensorSpec(shape, torch.int64).example(high=VOCABULARY)
    return TensorSpec(shape, torch.float32).example()


def gradients(module: nn.Module, output: Tensor) -> list[Tensor | None]:
    output.square().mean().backward()
    found = [parameter.grad for parameter in module.parameters()]
    module.zero_grad(set_to_none=True)
    return found


def check_cuts(chain: Chain, inputs: Tensor) -> None:
    """Check that at every cut, with the feature and its gradient alone crossing, results are those of the whole module."""
    module = chain.module.train()
    torch.manual_seed(0)
    output = module(inputs)
    expected = gradients(module, output)
    for cut in range(1, len(chain.blocks)):
        torch.manual_seed(0)
        features: Features = (inputs,)
        for block in chain.blocks[:cut]:
            features = call_module(block.module, features)
        learning = chain.gradient_slots(cut)
        received = tuple(one.detach().clone().requires_grad_(slot in learning) for slot, one in enumerate(features))
        value = received
        for block in chain.blocks[cut:]:
            value = call_module(block.module, value)
        assert torch.equal(value[0], output)
        value[0].square().mean().backward()
        torch.autograd.backward([features[slot] for slot in learning], [received[slot].grad for slot in learning])
        found = [parameter.grad for parameter in module.parameters()]
        assert [each is None for each in found] == [each is None for each in expected]
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True) if pair[0] is not None)
        module.zero_grad(set_to_none=True)
    module.eval()
    with torch.no_grad():
        assert torch.equal(run_chain(chain, inputs), module(inputs))


CASES = [
    (asking.Gpt, TOKENS, ["tokens", "positions", "layers.0", "layers.1", "layers.2", "head"]),
    (asking.Asking, SEQUENCES, ["first", "second", "third"]),
    (asking.Resized, (4, 1, 9, 9), ["down", "inner", "up"]),
    (asking.Clipping, SEQUENCES, ["first", "second", "third"]),
    (asking.Assigning, SEQUENCES, ["first", "second", "third"]),
    (asking.OwnGradient, SEQUENCES, ["first", "second"]),
    (asking.Looping, SEQUENCES, ["first", "cell", "head"]),
    (asking.Encoder, TOKENS, ["embed", *LAYERS, "head"]),
    (lambda: asking.Encoder(norm=False), TOKENS, ["embed", *LAYERS, "head"]),
    (lambda: asking.Encoder(causal=True), TOKENS, ["embed", *LAYERS, "head"]),
    (lambda: asking.Encoder(causal=True, by_argument=True), TOKENS, ["embed", *LAYERS, "head"]),
    (asking.Decoder, TOKENS, ["embed", *(f"decoder.layers.{index}" for index in range(3)), "head"]),
    (asking.Rotary, TOKENS, ["tokens", "layers.0", "layers.1", "layers.2", "head"]),
    (asking.Padded, TOKENS, ["embed", "encoder", "head"]),
    (asking.Opaque, SEQUENCES, ["first", "body", "head"]),
    (asking.Noisy, SEQUENCES, ["first", "second", "third"]),
    (asking.Skipping, TOKENS, ["tokens", "layers.0", "layers.1", "head"]),
    (asking.Headed, TOKENS, ["body.tokens", "body.positions", "body.layers.0", "body.layers.1", "head"]),
]
IDS = [f"{case[0].__name__}-{place}" for place, case in enumerate(CASES)]


@pytest.mark.parametrize(("make", "shape", "expected"), CASES, ids=IDS)
def test_what_can_be_answered_without_contents_divides_a_model(make, shape, expected):
    torch.manual_seed(0)
    chain = build_chain(make(), example(*shape))
    assert names(chain) == expected
    check_cuts(chain, example(*shape))
    check_cuts(chain, example(3, *shape[1:]))


@pytest.mark.parametrize(("make", "shape"), [case[:2] for case in CASES if case[0] is not asking.Looping])
def test_a_model_for_any_length_is_divided_for_any_length(make, shape):
    if len(shape) == 4:
        pytest.skip("a picture has no length")
    chain = build_chain(make(), example(*shape))
    for length in (5, 10):
        check_cuts(chain, example(2, length, *shape[2:]))


@pytest.mark.parametrize("make", [asking.Gpt, asking.Encoder, asking.Asking])
def test_blocks_go_to_another_device_with_the_tensors_that_they_make(make):
    chain = build_chain(make(), example(*(SEQUENCES if make is asking.Asking else TOKENS)))
    value = TensorSpec(chain.features[0][0].shape, chain.features[0][0].dtype).zeros(4).to("meta")
    for block in chain.blocks:
        value = block.module.to("meta")(value)
    assert value.is_meta
    assert (value.shape,) == tuple(spec.shape for spec in chain.outputs)


def test_layers_that_are_called_twice_give_blocks_of_different_names():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return self.head(self.second(self.first(one).relu()) - self.second(self.first(other).relu()))

    chain = build_chain(Twice(), (example(4, 5, WIDTH), example(4, 5, WIDTH)))
    assert names(chain) == ["first", "second", "first (2)", "second (2)", "head"]
    assert chain.together == ((0, 2), (1, 3))


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        scale = float(x.abs().max())  # contents
        return self.second(x / scale)


def line_of(function: object, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + index for index, line in enumerate(lines) if text in line]
    return f"{inspect.getsourcefile(function)}:{number}"


def test_a_question_about_contents_is_refused_with_its_line():
    with pytest.raises(ModelError, match="asks for the contents of a tensor") as refused:
        build_chain(Deciding(), example(*SEQUENCES))
    assert line_of(Deciding.forward, "# contents") in str(refused.value)


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(WIDTH, WIDTH), inner, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


@pytest.mark.parametrize("inner", [Deciding, asking.Summed])
def test_a_submodule_that_asks_what_changes_from_batch_to_batch_is_run_as_it_is(inner):
    chain = build_chain(Wrapped(inner()), example(*SEQUENCES))
    assert names(chain) == ["before", "inner", "after"]
    assert chain.blocks[1].module.get_submodule("inner") is chain.module.inner
    check_cuts(chain, example(6, *SEQUENCES[1:]))


def test_a_loop_over_the_batch_is_refused_with_its_line():
    with pytest.raises(ModelError, match="something else for another batch than for the example") as refused:
        build_chain(asking.Summed(), example(*SEQUENCES))
    assert line_of(asking.Summed.forward, "torch.stack") in str(refused.value)


def test_a_module_made_in_forward_is_part_of_it():
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return nn.Softmax(dim=-1)(self.second(nn.ReLU()(self.first(x))))

    chain = build_chain(Made(), example(*SEQUENCES))
    assert names(chain) == ["first", "second"]
    check_cuts(chain, example(*SEQUENCES))


def test_a_tensor_that_is_drawn_is_drawn_in_its_block():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x = x + torch.randn(x.shape[0], 1, WIDTH)
            return self.second(x + torch.rand(WIDTH))

    chain = build_chain(Noisy(), example(*SEQUENCES))
    assert names(chain) == ["first", "second"]
    assert [block.draws_random for block in chain.blocks] == [True, False]
    module = chain.module
    for _ in range(2):
        torch.manual_seed(1)
        expected = module(example(*SEQUENCES))
        torch.manual_seed(1)
        assert torch.equal(run_chain(chain, example(*SEQUENCES)), expected)


def test_results_that_follow_from_contents_past_torch_are_found():
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            mean = float(x.detach().numpy().mean())
            return self.linear(x) - mean

    chain = build_chain(Wrapped(Hidden()), example(*SEQUENCES))
    assert names(chain) == ["before", "inner", "after"]
    check_cuts(chain, torch.rand(SEQUENCES))


class Flattening(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(7 * WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x.view(len(x), -1))


def test_the_length_of_a_tensor_is_its_batch_size():
    chain = build_chain(Flattening(), example(*SEQUENCES))
    assert names(chain) == ["first", "second"]
    check_cuts(chain, example(6, *SEQUENCES[1:]))
    assert "len" not in globals()


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(x).float()


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((x.shape[0],), 3), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class Selecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x / x[x > 0].numel() + x[x > 0].shape[0]


@pytest.mark.parametrize("inner", [Casting, Packing, Selecting])
def test_a_submodule_that_does_what_no_trace_keeps_is_run_as_it_is(inner):
    chain = build_chain(Wrapped(inner()), example(*SEQUENCES))
    assert names(chain) == ["before", "inner", "after"]
    assert chain.blocks[1].module.get_submodule("inner") is chain.module.inner
    check_cuts(chain, example(6, *SEQUENCES[1:]))


@pytest.mark.parametrize("written", [False, True])
def test_a_buffer_of_two_layers_is_copied_unless_the_forward_writes_to_it(written):
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.register_buffer("offset", torch.ones(WIDTH), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            first, second, third = self.layers
            x = second(first(x) + self.offset) - self.offset
            if written:
                self.offset += 1
            return third(x)

    chain = build_chain(Offset(), example(*SEQUENCES))
    assert names(chain) == (["layers.0"] if written else ["layers.0", "layers.1"]) + ["layers.2"]
    transients = [list(block.named_transients()) for block in chain.blocks]
    assert transients == ([["offset"], []] if written else [[], [], []])
    if not written:
        check_cuts(chain, example(*SEQUENCES))


def test_a_mask_of_padding_is_named_beside_the_feature():
    chain = build_chain(asking.Padded(), example(*TOKENS))
    reasons = {seam.after: seam.reason for seam in explain(chain)}
    assert "packs" in reasons["encoder.layers.1.self_attn"]
    assert "enable_nested_tensor=False" in reasons["encoder.layers.1.self_attn"]


def test_a_model_can_be_divided_where_its_caller_has_switched_gradients_off():
    with torch.no_grad():
        chain = build_chain(residual_cnn(), torch.zeros(2, 1, 8, 8))
        assert not torch.is_grad_enabled()
    assert [block.name for block in chain.blocks] == [
        block.name for block in build_chain(residual_cnn(), torch.zeros(2, 1, 8, 8)).blocks
    ]
