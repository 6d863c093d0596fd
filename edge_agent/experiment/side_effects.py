"""Refusal of blocks and losses that take anything from elsewhere than their inputs: on another worker it would not be there.

A few samples pass all blocks and the loss, forward and backward, as in one process, and the module itself, whose gradients
must be those of its blocks. Then each block and the loss run by themselves, on what the others have handed on. In between,
other samples have passed with other weights, and meanwhile the weights of all other blocks are gone. So whatever comes by a
list, an attribute, a global, a closure or a counter is that of other samples then, or is missing, and outputs, loss or
gradients differ. What begins after the first batch is not seen here.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from edge_agent.data import Batch
from edge_agent.experiment.bound import Bound, hooked_blocks
from edge_agent.experiment.looks import NOTHING, Look, alike, look_at
from edge_agent.experiment.trial_runs import TrialRuns
from edge_agent.experiment.trial_state import (
    Attributes,
    Gone,
    attributes_of,
    detached,
    has_other_values,
    of_few,
    plain_numbers,
    tried,
    values_of,
)
from shared.errors import ModelError
from shared.foreign import described
from shared.model.behaviour import made_up_values
from shared.model.chain import Block, Chain
from shared.model.examples import with_batch
from shared.model.features import Features, call_module
from shared.model.inputs import by_place
from shared.model.random_state import random_state
from shared.model.snapshot import same_bits, unchanged
from shared.model.spec import is_differentiable
from shared.training.losses import label_tensors
from shared.training.optimizers import check_sparse
from shared.training.precision import computing
from shared.training.recipe import Recipe

_SAMPLES = 4
"""As few samples as normalisation over samples, and a loss of pairs, can do with."""
_ITS_CHECKPOINT = (
    "; or its backward computes a forward again (torch.utils.checkpoint), which does not go with deployment.backward = "
    '"stash": set it to "replay"'
)
_MEAN = 1e-3
"""Difference, as a part of a loss, that the mean over parts of a batch may have for rounding."""
_LARGE = 3
"""Factor of made-up weights: a forward that bounds weights, as by `max_norm`, then has something to do."""
_ROUNDING, _ROUNDING_IN_16_BITS = 3e-6, 1e-2
"""Differences, as parts of the largest gradient of a block, that come of sums in another order."""


def check_side_effects(chain: Chain, recipe: Recipe, first: Batch, *, stashes: bool = False) -> Bound:
    """Refuse what the placement would change on a batch: see the module. The model stays as it is. Raises ModelError.

    stashes: whether backwards may run on copies of weights.
    """
    hooked = hooked_blocks(chain, recipe)
    for samples in dict.fromkeys((min(_SAMPLES, first.samples), first.samples)):
        batch = of_few(first.features, samples), of_few(label_tensors(first.labels), samples)
        trial = _Trial(chain, recipe, *batch, stashes=stashes)
        with unchanged(chain.module), random_state("side effects"), torch.enable_grad():
            try:
                if (together := trial.together()) is None:
                    continue  # a loss may need a whole batch; where that fails, too, training says why
                trial.disturb()
                trial.compare(together)
                trial.check_counting(together)
                trial.check_forward(together)
            finally:
                for block in chain.blocks:
                    block.module.train(chain.module.training)
        return Bound(tuple(trial.rewriting), tuple(trial.sparse), hooked, trial.has_whole_loss)
    return Bound(hooked=hooked)


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

    def __init__(self, chain: Chain, recipe: Recipe, inputs: Features, labels: Features, *, stashes: bool) -> None:
        self._chain, self._blocks = chain, chain.blocks
        self._names = dict(chain.module.named_parameters())
        self._counting: dict[int, Attributes] = {}
        """Attributes before the first forward, of the blocks that have changed a number in one."""
        self.has_whole_loss = False
        self.rewriting, self.sparse = list[int](), list[int]()
        """As in `Bound`."""
        self._recipe, self._stashes = recipe, stashes
        self._runs = TrialRuns(chain, recipe, inputs, labels)
        self._rounding = _ROUNDING if recipe.base_precision == "fp32" else _ROUNDING_IN_16_BITS

    def together(self) -> _Together | None:
        """Run all in one process; None where that fails. Raises ModelError for parameters of the loss alone, and for sparse
        gradients that the optimizer cannot take."""
        passed = list[Features]()

        def through_blocks() -> Features:
            features = self._runs.entering()
            for block in self._blocks:
                passed.append(detached(features))
                before = values_of(block)
                numbers, attributes = plain_numbers(block.module), attributes_of(block.module)
                features = self._runs.forward(block, features)
                if has_other_values(block, before):
                    self.rewriting.append(block.index)
                if plain_numbers(block.module) != numbers:
                    self._counting[block.index] = attributes
            passed.append(detached(features))
            return features

        done, _ = tried(lambda: self._runs.learnt(through_blocks))
        if self._runs.cleared:
            name = next(name for name, value in self._names.items() if id(value) in self._runs.cleared)
            raise ModelError(
                f"a hook takes the gradient of {name!r} away in the backward, as one does that updates by an optimizer of its "
                "own; training.optimizer updates all that learns, so leave the hook out"
            )
        if done is None:
            return None
        self._check_own_parameters(done.besides)
        check_sparse([name for name, value in self._names.items() if id(value) in done.sparse], self._recipe)
        of_blocks = [set(map(id, block.named_parameters().values())) for block in self._blocks]
        self.sparse = [index for index, own in enumerate(of_blocks) if own & done.sparse]
        return _Together(passed, done.loss, done.gradients, done.besides)

    def check_counting(self, together: _Together) -> None:
        """Run each block that has changed a number in an attribute on other samples, with it and without. Raises ModelError."""
        for index, before in self._counting.items():
            block = self._blocks[index]
            inputs = tuple(1.5 * one if is_differentiable(one.dtype) else one for one in together.features[index])
            made = list[Features | None]()
            for attributes in (attributes_of(block.module), before):
                self._runs.restore_buffers(block)
                for of_part, values in attributes:
                    of_part.update(values)
                entering = tuple(one.clone() for one in inputs)
                made.append(tried(partial(self._runs.forward, block, entering))[0])
            after, first = made
            if first is not None and (after is None or not self._same(after, first)):
                _refuse_block(block, None)

    def check_forward(self, together: _Together) -> None:
        """Compare with the gradients that the forward of the module gives. Raises ModelError."""
        module, names = self._chain.module, self._chain.input_names
        if _is_sequence_of(module, [block.module for block in self._blocks]):
            return

        def through_module() -> Features:
            with random_state("forward"):
                return call_module(by_place(module.train(), names), self._runs.entering())

        def through_blocks() -> Features:
            features = self._runs.entering()
            with random_state("forward"):
                for block in self._blocks:
                    features = call_module(block.module.train(), features)
            return features

        def gradients(forward: Callable[[], Features]) -> dict[int, Look] | None:
            done, _ = tried(partial(self._runs.learnt, forward))  # where it fails, a plain loop does, too
            return None if done is None else done.gradients

        whole = gradients(through_module)
        draws = any(block.draws_random for block in self._blocks)
        apart = gradients(through_blocks) if draws else together.gradients
        if whole is None or apart is None or whole == apart:
            return
        is_exact = self._recipe.base_precision == "fp32" and gradients(through_module) == whole
        for block in reversed(self._blocks):
            pairs = [
                (whole.get(id(parameter), NOTHING), apart.get(id(parameter), NOTHING))
                for parameter in block.named_parameters().values()
            ]
            largest = max((norm for pair in pairs for norm, *_ in pair), default=0.0)
            if not all(alike(one, other, 0.0 if is_exact else self._rounding * largest) for one, other in pairs):
                raise ModelError(
                    f"the forward() of {type(module).__name__} gives block {block.name!r} another gradient than its blocks do, "
                    "one after another: by a detach(), a no_grad(), a hook or parametrize.cached() of the whole, which is not "
                    "there where blocks are apart; let a block do it"
                )

    def disturb(self) -> None:
        """Have other samples pass with other weights, so that what is left behind somewhere is theirs."""

        def run() -> None:
            features = with_batch(self._runs.inputs, len(self._runs.inputs[0]))
            for block in self._blocks:
                persistent = frozenset(map(id, block.named_buffers().values()))
                values = made_up_values(block.module, persistent)
                parameters = [values[name].mul_(_LARGE) for name, _ in block.module.named_parameters()]
                before = [value.clone() for value in parameters]
                features = self._runs.forward(block, features, values)
                if block.index not in self.rewriting and not all(map(same_bits, parameters, before)):
                    self.rewriting.append(block.index)
            self._runs.head.compute(features, tuple(each.flip(0) for each in self._runs.labels))

        tried(run)  # with such weights it may fail

    def compare(self, together: _Together) -> None:
        """Run each block and the loss by itself. Raises ModelError for the last that comes to something else."""
        outputs = together.features[-1]
        with Gone(self._runs.parameters.values()) as gone:
            with computing(self._recipe.base_precision):
                done, failure = tried(lambda: self._runs.head.gradient(outputs, self._runs.labels))
            if done is None or not self._alike((done[0].loss,), (together.loss,), abs(together.loss)):
                self._refuse_loss(together, None if done is None else done[0].loss, failure)
            _, gradients = done
            self.has_whole_loss = ":" in self._recipe.loss.name and not self._is_mean(outputs, together.loss)
            sums: dict[int, Tensor] = {}
            for block in reversed(self._blocks):
                with gone.but(block.module.parameters()):
                    hide = partial(gone.hide, block.module.parameters) if self._stashes else None
                    alone, failure = self._runs.alone(block, together.features[block.index], gradients, hide)
                    if alone is None or not self._same(alone.outputs, together.features[block.index + 1]):
                        _refuse_block(block, failure)
                    gradients = alone.at_inputs
                    for parameter, gradient in alone.at_parameters:
                        key = id(parameter)
                        sums[key] = sums[key] + gradient if key in sums else gradient
                self._compare_gradients(block, sums, together.gradients)

    def _is_mean(self, outputs: Features, loss: float) -> bool:
        """Tell whether the loss of a batch is the mean of those of its parts, weighted by their samples."""
        samples = len(outputs[0])
        parts = [slice(0, 1), slice(1, samples)] if samples > 1 else [slice(0, 1)]

        def of_parts() -> float:
            losses = ((_part(outputs, part), _part(self._runs.labels, part)) for part in parts)
            return sum(self._runs.head.evaluate(*each).loss * len(each[0][0]) / samples for each in losses)

        mean, _ = tried(of_parts)
        return mean is not None and (loss != loss or abs(mean - loss) <= _MEAN * abs(loss))

    def _compare_gradients(self, block: Block, sums: dict[int, Tensor], together: dict[int, Look]) -> None:
        """Compare the gradients of the parameters that a block has, and forget them. Raises ModelError."""
        pairs = []
        for parameter in block.named_parameters().values():
            alone = sums.pop(id(parameter), None)
            pairs.append((together.get(id(parameter), NOTHING), NOTHING if alone is None else look_at(alone)))
        largest = max((norm for pair in pairs for norm, *_ in pair), default=0.0)
        if not all(self._alike(one, other, largest) for one, other in pairs):
            raise ModelError(
                f"block {block.name!r} gets another gradient by itself than in the whole model: the loss or another block uses "
                "its weights, or something that it keeps, beside what it hands on, which another worker could not; hand it on "
                "as one tensor more" + (_ITS_CHECKPOINT if self._stashes else "")
            )

    def _same(self, ours: Features, theirs: Features) -> bool:
        """Tell whether features are alike, but for rounding."""
        if [(one.shape, one.dtype) for one in ours] != [(one.shape, one.dtype) for one in theirs]:
            return False
        others = [pair for pair in zip(ours, theirs, strict=True) if not same_bits(*pair)]
        looks = [(look_at(one), look_at(other)) for one, other in others]
        return all(self._alike(one, other, other[0]) for one, other in looks)

    def _alike(self, one: Look, other: Look, size: float) -> bool:
        return alike(one, other, self._rounding * size)

    def _check_own_parameters(self, besides: Iterable[Tensor]) -> None:
        foreign = [each for each in besides if id(each) not in self._runs.parameters]
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


def _is_sequence_of(module: nn.Module, blocks: list[nn.Module]) -> bool:
    """Tell whether a module does nothing but call these blocks, one after another."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return type(module) is nn.Sequential and list(module) == blocks and not any(hooks)


def _part(features: Features, part: slice) -> Features:
    return tuple(one[part] for one in features)


def _refuse_block(block: Block, failure: BaseException | None) -> NoReturn:
    what = "comes to something else" if failure is None else _failed(failure)
    raise ModelError(
        f"block {block.name!r} {what} where it has its inputs, parameters and buffers alone, as on a worker of its own: "
        "another block, the loss or an earlier batch leaves it something (in a list, an attribute, a global, the weights of "
        "another block), or it draws random numbers that are not torch's; hand it on from block to block as one tensor more, "
        "and keep in buffers what the block remembers"
    ) from failure


def _failed(failure: BaseException | None) -> str:
    return "fails" if failure is None else f"fails with {described(failure)[:200]}"
