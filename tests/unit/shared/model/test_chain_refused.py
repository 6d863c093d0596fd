"""Modules that cannot be a chain: the refusal says where and why."""

import inspect
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.chain import build_chain
from tests.support.models.chains import WIDTH, Generated, Opaque, Residual, Torn, example

torch.set_num_threads(1)


def line_of(thing: Callable[..., object], marker: str) -> str:
    """Return `file:line` of the one line of `thing` that ends in the comment `marker`."""
    lines, first = inspect.getsourcelines(thing)
    (found,) = (first + offset for offset, line in enumerate(lines) if line.rstrip().endswith(f"# {marker}"))
    return rf"{Path(inspect.getfile(thing)).stem}\.py:{found}:"


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
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = F.relu(x)  # train only
        return self.second(self.first(x))


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
    runs = itertools.count(1)

    class Counting(Torn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + next(runs)

    with pytest.raises(ModelError, match="Counting makes different results of the same input in train mode"):
        build_chain(Counting(["linear", "linear"]), example())


@pytest.mark.parametrize(
    ("draw", "named"), [(random.random, "Python's random"), (numpy.random.rand, "numpy")], ids=["random", "numpy"]
)
def test_what_draws_outside_of_torch_is_refused_for_that(draw, named):
    says = f"draws from {named} in its forward, .* torch's default generator"

    class RandomBlocks(Torn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + draw()

    class RandomDepth(ControlFlow):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for _ in range(8):
                if self.training and draw() < 0.5:
                    x = F.relu(x)
            return self.second(x)

    with pytest.raises(ModelError, match=f"RandomBlocks {says}"):
        build_chain(RandomBlocks(["linear", "linear"]), example())
    with pytest.raises(ModelError, match=f"RandomDepth {says}"):
        build_chain(RandomDepth(), example())


def tied_while_it_runs(module: nn.Module, *_: object) -> None:
    module.second.weight = module.first.weight


class TyingForward(ControlFlow):
    def forward(self, x: Tensor) -> Tensor:
        tied_while_it_runs(self)
        return self.second(F.relu(self.first(x)))


class Straight(ControlFlow):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))


def test_a_tie_that_is_made_as_the_module_runs_is_named():
    with pytest.raises(ModelError, match=r"TyingForward.* ties 'second\.weight' to 'first\.weight'; .* __init__"):
        build_chain(TyingForward(), example())
    hooked = Straight()
    hooked.register_forward_pre_hook(tied_while_it_runs)
    with pytest.raises(ModelError, match=r"Straight, or a hook, ties 'second\.weight' to 'first\.weight'"):
        build_chain(hooked, example())
    assert hooked.second.weight is not hooked.first.weight, "the module is as it was"


class WithPenalty(Straight):
    def __init__(self, samples: bool) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        penalty = self.first(x).square().mean()
        return super().forward(x), penalty.expand(len(x)) if self.samples else penalty


def test_an_output_that_is_one_number_is_refused_with_the_way_out_which_works():
    with pytest.raises(ModelError, match=r"each must have the batch first; .*\.expand\(batch\)"):
        build_chain(WithPenalty(samples=False), example())
    assert len(build_chain(WithPenalty(samples=True), example()).outputs) == 2


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


def test_a_weight_that_a_block_uses_twice_and_another_again_is_refused():
    shared = nn.Linear(WIDTH, WIDTH)
    twice = nn.Sequential(shared, nn.ReLU(), shared)
    with pytest.raises(
        ModelError, match=r"'0.0.weight' of Sequential is used 2 times by block '0' and again by block '2'"
    ):
        build_chain(nn.Sequential(twice, nn.ReLU(), shared), example())
    last = build_chain(nn.Sequential(shared, nn.ReLU(), twice), example())
    assert last.together == ((0, 2),)


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
    unused = Spare(["linear", "linear", "linear"])
    unused.parts[2].requires_grad_(False)  # as what adapters replace
    assert len(build_chain(unused, example()).blocks) == 2
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


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (lambda _: None, "Two returns a NoneType in train mode; it must return one tensor, or a tuple of tensors"),
        (torch.sum, r"Two returns tensors of shapes \(4, 6\), \(\) in train mode; each must have the batch first"),
    ],
)
def test_a_model_returns_tensors_with_the_batch_first(second, says):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.second(self.first(x).relu())
            return x, second(x)

    with pytest.raises(ModelError, match=says):
        build_chain(Two(), example())


def test_one_block_is_no_chain():
    for module in (nn.Linear(WIDTH, WIDTH), Residual(), Generated(["linear", "relu", "dropout"])):
        with pytest.raises(ModelError, match=f"{type(module).__name__} cannot be divided into blocks"):
            build_chain(module, example())
    with pytest.raises(ModelError, match="single block"):
        build_chain(Torn(["linear"]), example())
    with pytest.raises(ModelError, match=line_of(Opaque.forward, "opaque")):
        build_chain(nn.Sequential(Opaque()), example())


def test_blocks_must_return_modules():
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


def test_numbers_beyond_an_embedding_are_told_its_size():
    module = nn.Sequential(nn.Embedding(50, 4), nn.Flatten())
    assert build_chain(module, torch.full((4, 2), 49)).blocks
    with pytest.raises(
        ModelError, match=r"IndexError: .*; its embeddings have 50 rows: let the dataset's numbers be smaller"
    ):
        build_chain(module, torch.full((4, 2), 50))


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


@pytest.mark.parametrize(("samples", "weights"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_numbers_of_another_type_than_the_weights_are_named_with_the_way_out(samples, weights):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).to(weights)
    sample_type, weight_type = (str(each).removeprefix("torch.") for each in (samples, weights))
    with pytest.raises(
        ModelError, match=f"the input is {sample_type} and the weights are {weight_type}: let the dataset"
    ):
        build_chain(model, example().to(samples))
