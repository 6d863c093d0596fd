"""The plain loop with late gradients: the two sides of a cut in one process, by deep copies and autograd.

What `plain` is for K = 0 this is for every K: it shares with the product what defines the experiment, and codecs.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error
from shared.registry import OptimizerConfig, codec_spec
from shared.training.recipe import Recipe
from shared.training.schedule import learning_rate
from tests.support.plain import Value, plain_forward, plain_optimizer, plain_update, tupled


class PlainEdge:
    """Blocks of a module whose updates come late, the first ones: deep copies and autograd, nothing else.

    Replay (paper 000, Eq. 3) is the gradient at the weights of now; stash is that at the weights of then. A forward may run on
    weights that are predicted for the time of its update, which sgd then does with a longer momentum.
    """

    def __init__(self, blocks: Iterable[nn.Module], recipe: Recipe, policy: str, *, is_late: bool = True) -> None:
        self.blocks = nn.ModuleList(blocks).train()
        self._recipe = recipe
        self._policy = policy
        self._optimizer = plain_optimizer(self.blocks, recipe.optimizer)
        if is_late and recipe.staleness_correction != "none":
            lengthen_momentum(self._optimizer, recipe.optimizer)
        self._then: dict[int, tuple[Tensor, nn.ModuleList | None]] = {}
        self._pending: list[int] = []
        """Steps that have gone forward, and have no update yet."""

    def forward(self, step: int, inputs: Tensor, *, weights_stay: bool) -> Value:
        """The feature of a batch. weights_stay: the weights change no more before this batch's own update."""
        with self.predicted(step):
            self._then[step] = inputs, copy.deepcopy(self.blocks) if weights_stay or self._policy == "stash" else None
            with torch.no_grad():
                return plain_forward(self.blocks, self._recipe.seed, step, inputs.clone())

    @contextmanager
    def predicted(self, step: int) -> Iterator[None]:
        """Have the weights to which the updates of earlier steps bring them if no further gradient comes."""
        updating = [pending for pending in self._pending if self._recipe.updates_after(pending)]
        self._pending.append(step)
        if self._recipe.staleness_correction == "none" or not updating:
            yield
            return
        before = [parameter.detach().clone() for parameter in self.blocks.parameters()]
        with torch.no_grad():
            for place, group in enumerate(self._optimizer.param_groups):
                for parameter in group["params"]:
                    self._go_on(parameter, [learning_rate(self._recipe, step, place) for step in updating])
        yield
        with torch.no_grad():
            for parameter, value in zip(self.blocks.parameters(), before, strict=True):
                parameter.copy_(value)

    def _go_on(self, parameter: Tensor, rates: list[float]) -> None:
        if not (kept := self._optimizer.state.get(parameter)):
            return
        config, group = self._recipe.optimizer, self._optimizer.param_groups[0]
        decay = group["betas"][0] if "betas" in group else group["momentum"]
        way = sum(rate * decay**later for later, rate in enumerate(rates, 1))
        if config.name == "rmsprop":
            parameter.add_(kept["momentum_buffer"], alpha=-way)
        elif config.name == "sgd":
            parameter.add_(kept["momentum_buffer"], alpha=-2 * way)
        else:
            count, beta2 = float(kept["step"]), group["betas"][1]
            divisor = kept["exp_avg_sq"].sqrt() / (1 - beta2**count) ** 0.5 + group["eps"]
            parameter.addcdiv_(kept["exp_avg"], divisor, value=-way / (1 - decay**count))

    def backward(self, step: int, gradient: Tensor | tuple[Tensor | None, ...]) -> None:
        """Apply the error gradient of a batch; see `gradients`."""
        self.gradients(step, gradient)
        self.update(step)

    def gradients(self, step: int, gradient: Tensor | tuple[Tensor | None, ...]) -> None:
        """Compute the gradients of a batch from its error gradient; of a tuple of tensors a tuple, None where there is none."""
        inputs, then = self._then.pop(step)
        source = copy.deepcopy(self.blocks) if then is None else then
        outputs = tupled(plain_forward(source, self._recipe.seed, step, inputs.clone()))
        gradients = gradient if isinstance(gradient, tuple) else (gradient,)
        found = [pair for pair in zip(outputs, gradients, strict=True) if pair[1] is not None]
        found = [(output, at_output) for output, at_output in found if output.requires_grad]
        if found:
            torch.autograd.backward([output for output, _ in found], [at_output for _, at_output in found])
        for ours, theirs in zip(self.blocks.parameters(), source.parameters(), strict=True):
            ours.grad = theirs.grad if ours.grad is None or theirs.grad is None else ours.grad + theirs.grad

    def update(self, step: int) -> None:
        """Update by the gradients that are there."""
        self._pending.remove(step)
        clipped = [] if self._recipe.optimizer.clip == "model" else [block.parameters() for block in self.blocks]
        plain_update(clipped, self._optimizer, self._recipe, step)


def lengthen_momentum(optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> None:
    """Have a gradient act for longer under sgd, and as much in all, from the first one on."""
    if config.name != "sgd":
        return
    decay = max(config.momentum, 0.99)
    for group in optimizer.param_groups:
        group |= {"momentum": decay, "dampening": 1 - (1 - decay) / (1 - config.momentum), "nesterov": False}
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


class Crossing(Protocol):
    """The way of a batch over the cut: a Deployment, or a Scheme."""

    staleness: int
    codec: str
    downlink_codec: str


def steady_order(first_step: int, stop_step: int, staleness: int) -> Iterator[tuple[str, int]]:
    """The order of an edge whose gradients are each exactly `staleness` steps late, as far as there are steps to wait for."""
    settled = first_step
    for step in range(first_step, stop_step):
        if step - settled > staleness:
            yield "backward", settled
            settled += 1
        yield "forward", step
    for step in range(settled, stop_step):
        yield "backward", step


def plain_split(
    blocks: Sequence[nn.Module],
    cut: int,
    recipe: Recipe,
    policy: str,
    feedback: FeedbackMode,
    order: Iterable[tuple[str, int]],
    crossing: Callable[[int], Crossing],
    samples: Callable[[int], tuple[Tensor, Tensor]],
    received: Callable[[int, Tensor], Tensor] | None = None,
) -> None:
    """Train both sides of a cut in this order of the edge's forwards and backwards, one after the other.

    crossing, samples: of each step. Every float that crosses goes through codecs and is compensated by itself, integers go as
    they are and have no gradient. received: what is received of a step's feature, where not the codec alone decides it.
    """
    cloud = nn.ModuleList(blocks[cut:]).train()
    order = list(order)
    (is_late,) = {crossing(step).staleness > 0 for _, step in order}
    edge = PlainEdge(blocks[:cut], recipe, policy, is_late=is_late)
    optimizer = plain_optimizer(cloud, recipe.optimizer) if cloud else None
    waiting: dict[int, tuple[Tensor | None, ...]] = {}
    for what, step in order:
        if what == "backward":
            edge.backward(step, waiting.pop(step))
            continue
        how, (inputs, labels) = crossing(step), samples(step)
        up, down = codec_by_name(how.codec), codec_by_name(how.downlink_codec)
        features = tupled(edge.forward(step, inputs, weights_stay=how.staleness == 0))
        arrived = tuple(
            (up.decode(up.encode(feature)).clone() if received is None else received(step, feature)).requires_grad_()
            if feature.is_floating_point()
            else feature
            for feature in features
        )
        (output,) = tupled(plain_forward(cloud, recipe.seed, step, tuple(each.clone() for each in arrived), first=cut))
        nn.functional.cross_entropy(output, labels).backward()
        if optimizer is not None:
            plain_update([block.parameters() for block in cloud], optimizer, recipe, step)
        gradients: list[Tensor | None] = []
        for feature, decoded in zip(features, arrived, strict=True):
            gradient = None if decoded.grad is None else down.decode(down.encode(decoded.grad))
            if gradient is not None and codec_spec(up.name).lossy:
                error = compression_error(decoded.detach().clone(), feature)
                gradient = compensate(gradient, error, len(labels), feedback)
            gradients.append(gradient)
        waiting[step] = tuple(gradients)


def plain_clipped(
    halves: dict[str, PlainEdge],
    recipe: Recipe,
    events: Iterable[tuple[str, str, int]],
    batches: Sequence[tuple[Tensor, Tensor]],
) -> None:
    """Train both sides of a cut, whose gradients are clipped by one norm, in this order of events.

    halves: "edge", and "gpu", which has the loss. events: a side, what it does, and the step.
    """
    edge, gpu = halves["edge"].blocks, halves["gpu"].blocks
    crossing: dict[int, Tensor] = {}
    gradients: dict[int, dict[nn.Parameter, Tensor]] = defaultdict(dict)
    clipped: set[int] = set()
    for side, what, step in events:
        half = halves[side]
        match what:
            case "forward":
                crossing[step] = half.forward(step, batches[step][0], weights_stay=False)
            case "learn":
                feature = crossing[step].clone().requires_grad_()
                with half.predicted(step):
                    output = plain_forward(gpu, recipe.seed, step, feature.clone(), first=len(edge))
                    nn.functional.cross_entropy(output, batches[step][1]).backward()
                crossing[step] = feature.grad
            case "backward":
                half.gradients(step, crossing.pop(step))
            case "update":
                if step not in clipped:
                    both = [one for one in (*edge.parameters(), *gpu.parameters()) if one in gradients[step]]
                    for one in both:
                        one.grad = gradients[step][one]
                    nn.utils.clip_grad_norm_(both, recipe.optimizer.clip_norm)
                    clipped.add(step)
                    for one in both:
                        one.grad = None
                for parameter in half.blocks.parameters():
                    parameter.grad = gradients[step].get(parameter)
                half.update(step)
        if what in ("learn", "backward"):
            gradients[step] |= {one: one.grad for one in half.blocks.parameters() if one.grad is not None}
            half.blocks.zero_grad()
