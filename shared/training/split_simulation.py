"""Split training in one process: the stages, policies, codecs and feedback of the real pipeline, and no network.

When the edge does what is an input. Given the order of a real run, the simulation ends with the same weights, bit for bit
(tests/integration/benchmarks/test_simulation_agrees.py). The cloud has no order of its own: it takes the features as they were
sent, so what it computes does not depend on when. Where nothing on the edge learns, no gradient comes back.
Knows nothing of datasets.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error, is_lossy
from shared.model.chain import Chain
from shared.model.features import Features, Gradients
from shared.training.losses import BatchLoss, LossHead
from shared.training.policies import POLICIES
from shared.training.recipe import Recipe
from shared.training.stage import Stage, with_zeros


@dataclass(frozen=True)
class Scheme:
    """How batches cross the cut; the fields are those of `[deployment]` in the edge's configuration."""

    staleness: int = 0
    backward: str = "replay"
    feedback: FeedbackMode = FeedbackMode.BATCH
    codec: str = "fp32"
    downlink_codec: str = "fp32"


class Event(NamedTuple):
    """What the edge does next: the forward of a batch, or the backward of the oldest one in flight."""

    what: Literal["forward", "backward"]
    step: int


def steady_events(first_step: int, stop_step: int, staleness: int) -> Iterator[Event]:
    """The order of a pipeline whose gradients come as late as `staleness` allows: each is exactly so many steps late.

    Begins and ends with nothing in flight, as an epoch does; of the last batches the gradients come one after the other.
    """
    settled = first_step
    for step in range(first_step, stop_step):
        if step - settled > staleness:
            yield Event("backward", settled)
            settled += 1
        yield Event("forward", step)
    for step in range(settled, stop_step):
        yield Event("backward", step)


class _InFlight(NamedTuple):
    step: int
    gradients: Gradients
    compression_errors: tuple[Tensor | None, ...]
    samples: int


class Simulation:
    """Both sides of one run. The chain's blocks are trained in place."""

    def __init__(self, chain: Chain, cut: int, recipe: Recipe, scheme: Scheme, device: torch.device) -> None:
        self._scheme = scheme
        self._edge = Stage(chain, 0, cut, recipe, device)
        self._cloud = Stage(chain, cut, len(chain.blocks), recipe, device)
        self._policy = POLICIES[scheme.backward](self._edge)
        self._gradients_return = self._policy.gradients_return
        self._head = LossHead(recipe.loss, None)
        self._in_flight: deque[_InFlight] = deque()

    def run(self, events: Iterable[Event], batches: Iterator[tuple[Tensor, Tensor]]) -> list[BatchLoss]:
        """Do what `events` say; every forward takes the next of `batches`, (inputs, labels). Returns each forward's loss."""
        losses = []
        for event in events:
            if event.what == "forward":
                losses.append(self._forward(event.step, *next(batches)))
            else:
                self._backward(event.step)
        return losses

    def evaluate(self, inputs: Tensor, labels: Tensor) -> BatchLoss:
        """The loss of one batch as deployed: the feature goes through the codec."""
        features = tuple(_through(self._scheme.codec, feature) for feature in self._edge.evaluate((inputs,)))
        return self._head.evaluate(self._cloud.evaluate(features), labels)

    def _forward(self, step: int, inputs: Tensor, labels: Tensor) -> BatchLoss:
        """A batch's way up, through the cloud with its update, and down again, where the gradient waits for its turn."""
        features = self._policy.forward(step, (inputs,), weights_stay=self._scheme.staleness == 0)
        received = tuple(_through(self._scheme.codec, feature) for feature in features)
        graph = self._cloud.forward(step, received, input_gradient=self._gradients_return)
        loss, output_gradients = self._head.gradient(graph.outputs, labels)
        gradients = self._cloud.backward(graph, output_gradients)
        self._cloud.update(step)
        if self._gradients_return:
            returned = tuple(
                None if gradient is None else _through(self._scheme.downlink_codec, gradient)
                for gradient in with_zeros(gradients, received)
            )
            self._in_flight.append(_InFlight(step, returned, self._errors(received, features), len(labels)))
        return loss

    def _errors(self, received: Features, features: Features) -> tuple[Tensor | None, ...]:
        """What compression did to each feature that has an error gradient; None where it did nothing, or is let be."""
        if not is_lossy(self._scheme.codec) or self._scheme.feedback is FeedbackMode.OFF:
            return (None,) * len(features)
        return tuple(
            compression_error(decoded, feature.cpu()) if feature.is_floating_point() else None
            for decoded, feature in zip(received, features, strict=True)
        )

    def _backward(self, step: int) -> None:
        if not self._gradients_return:
            return
        oldest, returned, errors, samples = self._in_flight.popleft()
        assert oldest == step
        gradients = tuple(
            gradient
            if gradient is None or error is None
            else compensate(gradient, error.to(gradient.device), samples, self._scheme.feedback)
            for gradient, error in zip(returned, errors, strict=True)
        )
        self._policy.backward(step, gradients)


def _through(codec_name: str, tensor: Tensor) -> Tensor:
    """What the peer decodes of `tensor`: on the CPU, or `tensor` itself where nothing is lost: integers go raw."""
    if not is_lossy(codec_name) or not tensor.is_floating_point():
        return tensor
    codec = codec_by_name(codec_name)
    return codec.decode(codec.encode(tensor))
