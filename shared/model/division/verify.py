"""The comparison of a chain of blocks with its module, on an example.

It runs both and compares them bit for bit. It knows nothing of the search for blocks, and hands on its findings. The
module is left unchanged.
"""

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.foreign import described, foreign_code
from shared.model.examples import length_of, other_batch_sizes, with_batch
from shared.model.features import Features, FeatureSpecs, call_module, specs_of
from shared.model.inputs import by_place
from shared.model.random_state import generator_states, library_states, random_state
from shared.model.snapshot import BufferValues, same_bits
from shared.model.values.walk import Walk

_ONE_NUMBER = (
    "; return one number, as an auxiliary loss, once for each sample, by .expand(batch), and let a loss of your own take its "
    "mean; or compute it in that loss"
)


@dataclass(frozen=True)
class Observed:
    """Observations of one pass through the blocks."""

    features: tuple[FeatureSpecs, ...]
    """Specs of the features that enter each block, and of those that leave the last."""
    modifies_input: tuple[bool, ...]
    draws_random: tuple[bool, ...]
    passed: tuple[tuple[int | None, ...], ...]
    """By block and output, the slot of the input that the block hands on as it is; None where it makes or changes a tensor."""
    not_batch_first: frozenset[int] = frozenset()
    """Indices of the blocks whose inputs do not have the batch as their first dimension at every batch size."""
    of_lengths: Mapping[int, tuple[FeatureSpecs, ...]] = field(default_factory=dict)
    """The features by the length of the inputs, where other lengths were compared too."""


class Verification:
    """The behaviour of a module on an example in both modes, and with other batch sizes and contents, and the comparison of
    blocks with it."""

    def __init__(self, module: nn.Module, example: Features, names: tuple[str, ...] = ()) -> None:
        """Run the module, which takes the example by these names or by places. Raises ModelError when it fails, or makes
        anything but tensors."""
        if any(tensor.dim() == 0 or len(tensor) == 0 for tensor in example):
            raise ModelError("the example input is empty or a single number; it must be a batch, such as 32x3x32x32")
        if len({len(tensor) for tensor in example}) > 1:
            sizes = ", ".join(str(len(tensor)) for tensor in example)
            raise ModelError(
                f"the example inputs are of {sizes} samples; all must have the batch first, and be of as many"
            )
        self._name = type(module).__name__
        self._root, self._module = module, by_place(module, names)
        self._parameters = dict(self._module.named_parameters(remove_duplicate=False))
        self._state = _kinds_of_state(module)
        self._buffers = BufferValues(module)
        self._draws_from = ""
        """The generator that is none of torch's and from which the module has drawn, as far as is known."""
        self._passes: list[_Pass] = []
        self._expected: list[_Result] = []
        self._add(_Pass("in train mode", True, example))
        self._add(_Pass("in eval mode", False, example))
        for size in other_batch_sizes(example):
            self._add(_Pass(f"in eval mode with a batch of {size}", False, with_batch(example, size)))

    def add_length(self, inputs: Features) -> None:
        """Compare on inputs of another length too, unless this is done already."""
        length = length_of(inputs)
        if length in (length_of(case.inputs) for case in self._passes):
            return
        self._add(_Pass(f"in eval mode with a length of {length}", False, inputs))

    def _add(self, case: "_Pass") -> None:
        self._passes.append(case)
        before = library_states()
        self._expected.append(self._run([(self._name, self._module)], case))
        self._check_state(case)
        drawn = map(operator.ne, before, library_states())
        self._draws_from = next(itertools.compress(("Python's random", "numpy"), drawn), self._draws_from)

    def _check_state(self, case: "_Pass") -> None:
        found = _kinds_of_state(self._root)
        if changed := sorted(name for name in {**self._state, **found} if self._state.get(name) != found.get(name)):
            raise ModelError(
                f"{self._name} makes, resizes or removes {', '.join(map(repr, changed[:3]))} as it runs {case.label}; make "
                "them in __init__() with the shapes that stay, or let the factory run the module once on an example"
            )

    def check(self, blocks: Sequence[tuple[str, nn.Module]]) -> Observed:
        """Check that the named blocks, one after another, do in each pass the same as the module. Raises ModelError."""
        results = []
        for case, expected in zip(self._passes, self._expected, strict=True):
            result = self._run([(f"block {name!r} of {self._name}", block) for name, block in blocks], case)
            if not _same(result, expected):
                raise ModelError(self._difference(case, expected))
            results.append(result)
        inner = range(1, len(blocks))
        crossing = [
            (case.inputs[0].shape[:1], result.observed.features)
            for case, result in zip(self._passes, results, strict=True)
        ]
        never = frozenset(
            index
            for index in inner
            for batch, features in crossing
            if any(spec.shape[:1] != batch for spec in features[index])
        )
        of_lengths = {
            length_of(case.inputs): result.observed.features
            for case, result in zip(reversed(self._passes), reversed(results), strict=True)
        }
        return replace(results[0].observed, not_batch_first=never, of_lengths=of_lengths)

    @property
    def why_random(self) -> str:
        """Return in words why no two runs are alike, if it is for numbers that the module draws outside of torch."""
        if not self._draws_from:
            return ""
        return (
            f"{self._name} draws from {self._draws_from} in its forward, where no two runs are alike; let it draw from torch's "
            "default generator, as float(torch.rand(())), inside a submodule"
        )

    def _difference(self, case: "_Pass", expected: "_Result") -> str:
        before = {name: value.detach().clone() for name, value in self._parameters.items()}
        for other in (self._passes[1], case):  # once to and fro between the modes
            is_same_again = _same(self._run([(self._name, self._module)], other), expected)
        if self.why_random:
            return self.why_random
        if rewritten := [name for name, value in self._parameters.items() if not same_bits(value, before[name])]:
            return (
                f"{self._name} changes {', '.join(map(repr, rewritten[:3]))} by its forward, train() or eval(); in training an "
                "optimizer alone may change parameters: merge adapters afterwards, and make what a forward changes buffers"
            )
        if not is_same_again:
            return (
                f"{self._name} makes different results of the same input {case.label}; all that it draws must come from "
                "torch's default generator, and all that it remembers must be buffers"
            )
        if tied := self._tied_in_forward():
            return (
                f"the forward of {self._name}, or a hook, ties {' and '.join(tied)}; tie parameters in __init__(), so that "
                "the blocks have them so from the beginning"
            )
        return (
            f"the blocks of {self._name}, one after another, do not give what {self._name} gives {case.label}; it needs a "
            "method blocks() that returns its blocks in order, and a forward() that does no more than run them"
            f"{self._why_whole()}"
        )

    def _why_whole(self) -> str:
        """Return what the module has that its blocks have not; empty where nothing is known."""
        if self._root._forward_hooks or self._root._forward_pre_hooks:
            return "; its hooks are not called where blocks are apart: let a block have them"
        if type(self._root).train is not nn.Module.train:
            return "; its train() is not called where blocks are apart: let the layers that stay in a mode override train()"
        return ""

    def _tied_in_forward(self) -> list[str]:
        """Name the parameters that are others since the module has run, each with the one that it is now."""
        now = dict(self._module.named_parameters(remove_duplicate=False))
        names = {id(parameter): name for name, parameter in reversed(self._parameters.items())}
        changed = (name for name, parameter in now.items() if parameter is not self._parameters.get(name))
        return [f"{name!r} to {names[id(now[name])]!r}" for name in changed if id(now[name]) in names][:3]

    def _run(self, titled: Sequence[tuple[str, nn.Module]], case: "_Pass") -> "_Result":
        features: Features = tuple(tensor.clone() for tensor in case.inputs)
        specs, walk, draws = [specs_of(features)], Walk(features), []
        self._buffers.restore()
        with torch.no_grad(), random_state("verify"):
            for title, block in titled:
                block.train(case.training)
                generators = generator_states()
                with foreign_code(functools.partial(_failure, f"{title} fails {case.label}", block, specs[-1])):
                    outputs = call_module(block, features)
                for output in outputs:
                    if not isinstance(output, Tensor):
                        kind = type(output).__name__
                        raise ModelError(
                            f"{title} returns a {kind} {case.label}; it must return one tensor, or a tuple of tensors; "
                            "model.output may name the one to train on"
                        )
                walk.step(outputs)
                draws.append(not all(map(torch.equal, generators, generator_states())))
                specs.append(specs_of(outputs))
                features = outputs
        if len(features) != 1 and any(each.shape[:1] != case.inputs[0].shape[:1] for each in features):
            raise ModelError(
                f"{titled[-1][0]} returns tensors of shapes {', '.join(str(tuple(each.shape)) for each in features)} "
                f"{case.label}; each must have the batch first{_ONE_NUMBER if any(not each.dim() for each in features) else ''}"
            )
        observed = Observed(tuple(specs), walk.modified(), tuple(draws), tuple(walk.passed))
        return _Result(features, self._buffers.copies(), observed)


@dataclass(frozen=True)
class _Pass:
    label: str
    training: bool
    inputs: Features


@dataclass(frozen=True)
class _Result:
    outputs: Features
    buffers: list[Tensor]
    observed: Observed


def _kinds_of_state(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The shape and the type of each parameter and buffer, by name."""
    state = itertools.chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    return {name: (value.shape, value.dtype) for name, value in state}


def _same(one: _Result, other: _Result) -> bool:
    if len(one.outputs) != len(other.outputs):
        return False
    return all(map(same_bits, (*one.outputs, *one.buffers), (*other.outputs, *other.buffers)))


def _failure(what: str, block: nn.Module, all_entered: FeatureSpecs, cause: BaseException) -> ModelError:
    entered = next((spec for spec in all_entered if spec.differentiable), all_entered[0])
    kinds = {parameter.dtype for parameter in block.parameters() if parameter.is_floating_point()}
    advice = ""
    if entered.dtype.is_floating_point and len(kinds) == 1 and entered.dtype not in kinds:
        weights = _named(*kinds)
        advice = (
            f"; the input is {_named(entered.dtype)} and the weights are {weights}: let the dataset return {weights}, or the "
            f"factory a model of {_named(entered.dtype)}"
        )
    advice += embedding_advice(cause, block)
    return ModelError(f"{what} on an input of shape {entered.shape}: {described(cause)}{advice}")


def embedding_advice(cause: BaseException, *modules: nn.Module) -> str:
    """Return advice where a number of the dataset may have had no row in an embedding; empty elsewhere."""
    parts = (part for module in modules for part in module.modules())
    rows = sorted({part.num_embeddings for part in parts if isinstance(part, nn.Embedding | nn.EmbeddingBag)})
    if not rows or not isinstance(cause, IndexError):
        return ""
    return (
        f"; its embeddings have {' or '.join(map(str, rows))} rows: let the dataset's numbers be smaller, or the embedding "
        "larger"
    )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
