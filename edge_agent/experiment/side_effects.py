"""Refusal of blocks and losses that take anything from elsewhere than their inputs: on another worker it would not be there.

A few samples pass all blocks and the loss, forward and backward, as in one process. Then each block and the loss run by
themselves, on what the others have handed on. In between, other samples have passed with other weights, and meanwhile the
weights of all other blocks are gone. So whatever comes by a list, an attribute, a global, a closure or a counter is that of
other samples then, or is missing, and outputs, loss or gradients differ. What begins after the first batch is not seen here.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from math import isnan
from typing import NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from edge_agent.data import Batch
from shared.errors import ModelError
from shared.foreign import described, is_ours
from shared.model.behaviour import made_up, made_up_values
from shared.model.chain import Block, Chain
from shared.model.examples import with_batch
from shared.model.features import Features, Gradients, call_module, flat_numbers
from shared.model.random_state import random_state
from shared.model.snapshot import BufferValues, same_bits, unchanged
from shared.training.losses import LossHead, label_tensors
from shared.training.precision import computing
from shared.training.recipe import Recipe
from shared.training.stage import run_engine

T = TypeVar("T")

_SAMPLES = 4
"""As few samples as normalisation over samples, and a loss of pairs, can do with."""
_PIECE = 65_536
"""Numbers of a gradient that are looked at in one go, so that a large one needs no copy of itself."""
_LOOKS = 3
_ROUNDING, _ROUNDING_IN_16_BITS = 3e-6, 1e-2
"""Differences, as parts of the largest gradient of a block, that come of sums in another order."""
Look = tuple[float, ...]
"""A few numbers of a tensor: its norm, and its sums with made-up weights."""


def check_side_effects(chain: Chain, recipe: Recipe, first: Batch) -> None:
    """Refuse what the placement would change on a batch: see the module. The model stays as it is. Raises ModelError."""
    for samples in dict.fromkeys((min(_SAMPLES, first.samples), first.samples)):
        trial = _Trial(chain, recipe, _of_few(first.features, samples), _of_few(label_tensors(first.labels), samples))
        with unchanged(chain.module), random_state("side effects"), torch.enable_grad():
            try:
                if (together := trial.together()) is None:
                    continue  # a loss may need a whole batch; where that fails, too, training says why
                trial.disturb()
                trial.compare(together)
            finally:
                for block in chain.blocks:
                    block.module.train(chain.module.training)
        return


class _Together(NamedTuple):
    """The results of one process."""

    features: list[Features]
    """The features that entered each block, and the outputs."""
    loss: float
    gradients: dict[int, Look]
    """A look at the gradient of each parameter that learns, by its id; none where no gradient came."""
    besides: list[Tensor]
    """The parameters that the loss reaches otherwise than by the outputs."""


class _Trial:
    """A batch for all blocks and the loss."""

    def __init__(self, chain: Chain, recipe: Recipe, inputs: Features, labels: Features) -> None:
        self._blocks = chain.blocks
        self._answered = [chain.gradient_slots(block.index) for block in chain.blocks]
        self._recipe = recipe
        self._head = LossHead(recipe.loss, None)
        self._inputs, self._labels = inputs, labels
        self._buffers = [BufferValues(block.module) for block in chain.blocks]
        self._parameters = {id(each): each for block in chain.blocks for each in block.module.parameters()}
        self._rounding = _ROUNDING if recipe.base_precision == "fp32" else _ROUNDING_IN_16_BITS

    def together(self) -> _Together | None:
        """Run all in one process; None where that fails. Raises ModelError for parameters of the loss alone."""
        done, _ = _tried(self._run_together)
        if done is not None:
            self._check_own_parameters(done.besides)
        return done

    def _run_together(self) -> _Together:
        features, passed = tuple(one.clone() for one in self._inputs), list[Features]()
        for block in self._blocks:
            passed.append(_detached(features))
            features = self._forward(block, features)
        passed.append(_detached(features))
        with computing(self._recipe.base_precision):
            loss = self._head.compute(features, self._labels).loss
        besides = _reached(loss, features)
        gradients: dict[int, Look] = {}

        def look(parameter: Tensor) -> None:
            assert parameter.grad is not None, "the hook is called after it has come"
            gradients[id(parameter)], parameter.grad = _look(parameter.grad), None

        with ExitStack() as hooks:
            for parameter in self._parameters.values():
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]
                    hooks.callback(hook.remove)
            if loss.requires_grad:
                run_engine((loss,), (torch.ones_like(loss),))
        return _Together(passed, float(loss.detach()), gradients, besides)

    def disturb(self) -> None:
        """Have other samples pass with other weights, so that what is left behind somewhere is theirs."""

        def run() -> None:
            features = with_batch(self._inputs, len(self._inputs[0]))
            for block in self._blocks:
                persistent = frozenset(map(id, block.named_buffers().values()))
                features = self._forward(block, features, made_up_values(block.module, persistent))
            self._head.compute(features, tuple(each.flip(0) for each in self._labels))

        _tried(run)  # with such weights it may fail

    def compare(self, together: _Together) -> None:
        """Run each block and the loss by itself. Raises ModelError for the last that comes to something else."""
        outputs = together.features[-1]
        with _Gone(self._parameters.values()) as gone:
            with computing(self._recipe.base_precision):
                done, failure = _tried(lambda: self._head.gradient(outputs, self._labels))
            if done is None or not self._alike((done[0].loss,), (together.loss,), abs(together.loss)):
                self._refuse_loss(together, None if done is None else done[0].loss, failure)
            _, gradients = done
            sums: dict[int, Tensor] = {}
            for block in reversed(self._blocks):
                self._buffers[block.index].restore()
                with gone.but(block.module.parameters()):
                    made, found, failure = self._alone(block, together.features[block.index], gradients)
                    if made is None or not self._same(made, together.features[block.index + 1]):
                        _refuse_block(block, failure)
                    gradients, of_parameters = found
                    for parameter, gradient in of_parameters:
                        key = id(parameter)
                        sums[key] = sums[key] + gradient if key in sums else gradient
                self._compare_gradients(block, sums, together.gradients)

    def _alone(
        self, block: Block, inputs: Features, gradients: Gradients
    ) -> tuple[Features | None, tuple[Gradients, list[tuple[nn.Parameter, Tensor]]], BaseException | None]:
        """Return the outputs of a block, and the gradients at its inputs and parameters; no outputs where it fails."""
        learning = [each for each in block.module.parameters() if each.requires_grad]
        leaves = {slot: inputs[slot].detach().requires_grad_() for slot in self._answered[block.index]}

        def run() -> tuple[Features, Gradients, list[Tensor | None]]:
            entering = tuple(leaves.get(slot, one).clone() for slot, one in enumerate(inputs))
            outputs = self._forward(block, entering)
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            targets = [*leaves.values(), *learning]
            found: list[Tensor | None] = [None] * len(targets)
            if pairs and targets:
                roots, at_roots = zip(*pairs, strict=True)
                found = list(run_engine(roots, at_roots, tuple(targets)))
            at_inputs = dict(zip(leaves, found, strict=False))
            return _detached(outputs), tuple(map(at_inputs.get, range(len(inputs)))), found[len(leaves) :]

        done, failure = _tried(run)
        if done is None:
            return None, ((), []), failure
        outputs, at_inputs, at_parameters = done
        pairs = zip(learning, at_parameters, strict=True)
        return outputs, (at_inputs, [(each, found) for each, found in pairs if found is not None]), None

    def _forward(self, block: Block, features: Features, values: dict[str, Tensor] | None = None) -> Features:
        recipe = self._recipe
        with computing(recipe.base_precision), random_state(recipe.seed, 0, block.index):
            return call_module(block.module.train(), features, values)

    def _compare_gradients(self, block: Block, sums: dict[int, Tensor], together: dict[int, Look]) -> None:
        """Compare the gradients of the parameters that a block has, and forget them. Raises ModelError."""
        pairs = []
        for parameter in block.named_parameters().values():
            alone = sums.pop(id(parameter), None)
            pairs.append((together.get(id(parameter), _NOTHING), _NOTHING if alone is None else _look(alone)))
        largest = max((norm for pair in pairs for norm, *_ in pair), default=0.0)
        if not all(self._alike(one, other, largest) for one, other in pairs):
            raise ModelError(
                f"block {block.name!r} gets another gradient by itself than in the whole model: the loss or another block uses "
                "its weights, or something that it keeps, beside what it hands on, which another worker could not; hand it on "
                "as one tensor more"
            )

    def _same(self, ours: Features, theirs: Features) -> bool:
        """Tell whether features are alike, but for rounding."""
        if [(one.shape, one.dtype) for one in ours] != [(one.shape, one.dtype) for one in theirs]:
            return False
        others = [pair for pair in zip(ours, theirs, strict=True) if not same_bits(*pair)]
        looks = [(_look(one), _look(other)) for one, other in others]
        return all(self._alike(one, other, other[0]) for one, other in looks)

    def _alike(self, one: Look, other: Look, size: float) -> bool:
        pairs = zip(one, other, strict=True)
        return all(a == b or abs(a - b) <= self._rounding * size or (isnan(a) and isnan(b)) for a, b in pairs)

    def _check_own_parameters(self, besides: Iterable[Tensor]) -> None:
        foreign = [each for each in besides if id(each) not in self._parameters]
        if foreign:
            shapes = ", ".join(str(tuple(each.shape)) for each in foreign[:3])
            raise ModelError(
                f"training.loss {self._recipe.loss.name!r} has parameters of its own ({len(foreign)}, of shape {shapes}), "
                "which no optimizer updates and no checkpoint has; let the model's last block have them, and hand on what the "
                "loss needs"
            )

    def _refuse_loss(self, together: _Together, loss: float | None, failure: BaseException | None) -> NoReturn:
        what = f"{_failed(failure)}" if loss is None else f"is {loss:.6g} in place of {together.loss:.6g}"
        reached = set(map(id, together.besides))
        givers = [block.name for block in self._blocks if reached.intersection(map(id, block.module.parameters()))]
        source = f"block {givers[-1]!r} gives it something besides" if givers else "something else has a part in it"
        raise ModelError(
            f"training.loss {self._recipe.loss.name!r} {what} where it has the outputs and the labels alone, as on a worker "
            f"of its own: {source} (by a list, an attribute, a global, an earlier call, a random number); let the model return "
            "that as one output more, which a loss of your own takes in a tuple"
        ) from failure


class _Gone:
    """Parameters without their values, but those of one block at a time."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._values = {id(each): (each, each.data) for each in parameters}

    def __enter__(self) -> "_Gone":
        for parameter, values in self._values.values():
            parameter.data = _nothing_like(values)
        return self

    def __exit__(self, *_: object) -> None:
        for parameter, values in self._values.values():
            parameter.data = values

    @contextmanager
    def but(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Have these back while the body runs."""
        pairs = [self._values[id(each)] for each in parameters]
        for parameter, values in pairs:
            parameter.data = values
        yield  # what it raises ends all
        for parameter, values in pairs:
            parameter.data = _nothing_like(values)


def _nothing_like(values: Tensor) -> Tensor:
    nothing = torch.nan if values.is_floating_point() or values.is_complex() else 0
    return torch.full((), nothing, dtype=values.dtype, device=values.device).expand(values.shape)


def _refuse_block(block: Block, failure: BaseException | None) -> NoReturn:
    what = "comes to something else" if failure is None else _failed(failure)
    raise ModelError(
        f"block {block.name!r} {what} where it has its inputs, parameters and buffers alone, as on a worker of its own: "
        "another block, the loss or an earlier batch leaves it something (in a list, an attribute, a global, the weights of "
        "another block), or it draws random numbers that are not torch's; hand it on from block to block as one tensor more, "
        "and keep in buffers what the block remembers"
    ) from failure


def _failed(failure: BaseException | None) -> str:
    return "fails" if failure is None else f"fails with {' '.join(described(failure).split())[:200]}"


def _tried(run: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return the result of foreign code, or what it raised."""
    try:
        return run(), None
    except BaseException as cause:
        if is_ours(cause):
            raise
        return None, cause


def _of_few(tensors: Features, samples: int) -> Features:
    return tuple(each[:samples].clone() for each in tensors)


def _detached(features: Features) -> Features:
    """Return copies, which nothing writes to."""
    return tuple(one.detach().clone() for one in features)


def _reached(loss: Tensor, outputs: Features) -> list[Tensor]:
    """List the leaves of a loss's graph that it reaches otherwise than by the outputs."""
    seen = {output.grad_fn for output in outputs}
    pending, found = [loss.grad_fn], list[Tensor]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [behind for behind, _ in node.next_functions]
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append(leaf)
    return found


_NOTHING: Look = (0.0,) * (1 + _LOOKS)


def _look(tensor: Tensor) -> Look:
    flat = flat_numbers(tensor.to_dense() if tensor.is_sparse else tensor)
    squares, sums = 0.0, torch.zeros(_LOOKS, dtype=torch.float64)
    for place, piece in enumerate(torch.split(flat, _PIECE)):
        numbers = piece.double().cpu()
        squares += float(numbers.square().sum())
        sums += _weights(place % 7)[:, : len(numbers)] @ numbers
    return squares**0.5, *sums.tolist()


@cache
def _weights(place: int) -> Tensor:
    return torch.stack([made_up(_PIECE, f"look {index} {place}").double() for index in range(_LOOKS)])
