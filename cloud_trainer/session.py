"""One training run of one edge, as the trainer holds it: the chain, the cloud's stage of it, and the next step.

Its methods compute and are called from the compute thread; it knows nothing of streams.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from torch import Tensor, device

from shared.codec import codec_by_name
from shared.errors import ConfigError, ProtocolError
from shared.model import block_state
from shared.model.build import build_checked_chain, check_cut, parse_kwargs
from shared.model.chain import Chain
from shared.model.losses import BatchLoss, LossHead
from shared.model.recipe import Recipe
from shared.model.spec import TensorSpec
from shared.model.stage import Graph, Stage
from shared.tensor_wire import torch_dtype
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, OpenSessionRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator lets one session ask for."""

    tensor_bytes: int
    staleness: int


@dataclass(frozen=True, slots=True)
class CloudStep:
    """What one step gave: its loss, the error gradient at the feature (None where the edge needs none), and T3 so far."""

    loss: BatchLoss
    gradient: Tensor | None
    graph_seconds: float


class Session:
    """The state of one run. `next_step` is the step that the cloud's weights wait for."""

    def __init__(
        self,
        session_id: str,
        chain: Chain,
        recipe: Recipe,
        deployment: Deployment,
        head: LossHead,
        limits: Limits,
        on: device,
    ) -> None:
        self.id = session_id
        self.chain = chain
        self.recipe = recipe
        self.deployment = deployment
        self.stage = Stage(chain, deployment.cut, len(chain.blocks), recipe, on)
        self.sends_gradients = any(block.trainable for block in chain.blocks[: deployment.cut])
        self.next_step = 0
        self.attached = False
        self.received_bytes = 0
        self.sent_bytes = 0
        self._head = head
        self._limits = limits

    def change_deployment(self, deployment: Deployment) -> None:
        """Take other codecs or another K for the batches that come from now on.

        Raises ProtocolError when the deployment does not follow the one in force, ConfigError for an unknown codec.
        """
        if deployment.epoch != self.deployment.epoch + 1 or deployment.cut != self.deployment.cut:
            raise ProtocolError(
                f"deployment {deployment.epoch} at cut {deployment.cut} came; {self.deployment.epoch + 1} at cut "
                f"{self.deployment.cut} could follow"
            )
        _check_deployment(deployment, self._limits)
        self.deployment = deployment

    @property
    def feature(self) -> TensorSpec:
        """Shape and type of what crosses the cut, with the batch size of the edge's example."""
        return self.chain.features[self.deployment.cut]

    def compute(self, step: int, feature: Tensor, labels: Tensor) -> CloudStep:
        """Forward, loss and backward of one batch; `update` must follow. Raises ProtocolError for labels that do not fit."""
        started = time.perf_counter()
        graph: Graph = self.stage.forward(step, feature, input_gradient=self.sends_gradients)
        try:
            loss, gradient = self._head.gradient(graph.output, labels)
        except (RuntimeError, IndexError, ValueError) as cause:
            raise ProtocolError(
                f"step {step}: loss {self.recipe.loss!r} of an output {tuple(graph.output.shape)} and labels "
                f"{labels.dtype} {tuple(labels.shape)} failed: {str(cause).splitlines()[0]}"
            ) from cause
        input_gradient = self.stage.backward(graph, gradient)
        return CloudStep(loss, input_gradient, time.perf_counter() - started)

    def update(self, step: int) -> float:
        """Apply the gradients of `step`; returns the seconds it took."""
        started = time.perf_counter()
        self.stage.update(step)
        self.next_step = step + 1
        return time.perf_counter() - started

    def evaluate(self, feature: Tensor, labels: Tensor) -> BatchLoss:
        """The loss of one batch with the weights of now."""
        return self._head.evaluate(self.stage.evaluate(feature), labels)

    def check_owned(self, block: int) -> int:
        """`block` if the cloud runs it. Raises ProtocolError otherwise."""
        if not self.stage.first <= block < self.stage.stop:
            raise ProtocolError(
                f"block {block} is not in the cloud; blocks {self.stage.first} to {self.stage.stop - 1} are"
            )
        return block

    def block_digests(self) -> list[int]:
        """Digests of the cloud's blocks, in order."""
        return [block_state.digest(block) for block in self.stage.blocks]


def open_session(
    request: OpenSessionRequest, session_id: str, allowed: Sequence[str], limits: Limits, on: device
) -> Session:
    """Build a session from what the edge asked for, judging every part of it.

    Raises ModelError, ConfigError or ProtocolError with the sentence that the edge's user will read.
    """
    try:
        recipe = Recipe.model_validate_json(request.recipe_json or "{}")
    except ValidationError as cause:
        first = cause.errors(include_url=False)[0]
        raise ConfigError(f"the recipe: {'.'.join(map(str, first['loc'])) or 'as a whole'}: {first['msg']}") from cause
    head = LossHead(recipe.loss, allowed)
    example = TensorSpec(tuple(request.example.shape), torch_dtype(request.example.dtype))
    if not example.shape or not 0 < example.bytes <= limits.tensor_bytes:
        raise ProtocolError(
            f"the example batch {example.shape[:8]} has {example.bytes} bytes; it must have 1 to {limits.tensor_bytes}"
        )
    kwargs = parse_kwargs(request.model.kwargs_json)
    chain = build_checked_chain(
        request.model.factory, kwargs, recipe.seed, example.example(), frozen=recipe.frozen, allowed_prefixes=allowed
    )
    check_cut(request.deployment.cut, chain)
    _check_deployment(request.deployment, limits)
    names = [block.name for block in chain.blocks]
    if names != list(request.block_names):
        raise ProtocolError(
            f"the edge's model is a chain of {len(request.block_names)} blocks and the trainer's of {len(names)}, or their "
            f"names differ: both sides must import the same {request.model.factory!r}"
        )
    return Session(session_id, chain, recipe, request.deployment, head, limits, on)


def _check_deployment(deployment: Deployment, limits: Limits) -> None:
    if deployment.staleness > limits.staleness:
        raise ProtocolError(
            f"a staleness of {deployment.staleness} is more than this trainer's limit of {limits.staleness} "
            "(server.max_staleness)"
        )
    for name in (deployment.codec, deployment.downlink_codec):
        codec_by_name(name)
