"""One training run of one edge, as the trainer holds it: the chain, the cloud's stage of it, and the next step.

Its methods compute and are called from the compute thread; it knows nothing of streams.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from pydantic import ValidationError
from torch import Tensor, device

from shared.codec import codec_by_name
from shared.errors import ConfigError, ModelError, ProtocolError
from shared.model import block_state
from shared.model.build import build_checked_chain, check_cut, parse_kwargs
from shared.model.chain import Chain
from shared.model.losses import BatchLoss, LossHead
from shared.model.measure import measure_stage
from shared.model.recipe import Recipe
from shared.model.spec import TensorSpec
from shared.model.stage import Graph, Stage
from shared.tensor_wire import torch_dtype
from shared.transport.framing import MAX_DIMENSIONS
from shared.transport.status import Refusal
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, OpenSessionRequest

_IGNORED_CLASS = -100
"""The label that torch's cross_entropy leaves out of the mean."""
_MAX_REPEATS = 1000


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
        self.next_step = 0
        self.attached = False
        self.measured = False
        self.received_bytes = 0
        self.sent_bytes = 0
        self._head = head
        self._limits = limits
        self._arriving: dict[int, block_state.BlockTensors] = {}

    @property
    def sends_gradients(self) -> bool:
        """Whether anything on the edge learns."""
        return any(block.trainable for block in self.chain.blocks[: self.deployment.cut])

    def change_deployment(self, deployment: Deployment) -> None:
        """Take other codecs or another K for the batches that come from now on.

        Raises ProtocolError when the deployment does not follow the one in force, ConfigError for an unknown codec.
        """
        if deployment.epoch <= self.deployment.epoch or deployment.cut != self.deployment.cut:
            raise ProtocolError(
                f"deployment {deployment.epoch} at cut {deployment.cut} came; a later one than {self.deployment.epoch}, at cut "
                f"{self.deployment.cut}, could follow"
            )
        _check_deployment(deployment, self._limits)
        self.deployment = deployment

    def migrate(self, deployment: Deployment, next_step: int) -> None:
        """Move the cut, whole or not at all; a deployment that is in force already is no error.

        Raises Refusal when it does not follow the one in force, comes at another step, or a block has not arrived;
        ModelError for a cut out of range.
        """
        if deployment == self.deployment:
            return
        check_cut(deployment.cut, self.chain)
        _check_deployment(deployment, self._limits)
        missing = [
            index
            for index in range(deployment.cut, self.deployment.cut)
            if index not in self._arriving and not block_state.is_static(self.chain.blocks[index])
        ]
        if deployment.epoch <= self.deployment.epoch or next_step != self.next_step or missing:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"deployment {deployment.epoch} at step {next_step} cannot follow deployment {self.deployment.epoch} at step "
                f"{self.next_step}" + (f" without blocks {missing}" if missing else ""),
            )
        arriving = {index: self._arriving[index] for index in self._arriving if index >= deployment.cut}
        self.stage.move(deployment.cut, len(self.chain.blocks), arriving)
        self._arriving.clear()
        self.deployment = deployment

    def measure(self, cut: int, repeats: int) -> list[float]:
        """Seconds of each of `repeats` steps of blocks [cut, L), on made-up features; spoils the weights.

        Raises Refusal when the session trains, ModelError for a cut out of range, ProtocolError for too many repeats.
        """
        check_cut(cut, self.chain)
        if not 1 <= repeats <= _MAX_REPEATS:
            raise ProtocolError(f"{repeats} repeats were asked for; 1 to {_MAX_REPEATS} can be")
        if self.attached or self.next_step:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {self.id} trains; measuring would spoil its weights"
            )
        self.measured = True
        needs_gradient = any(block.trainable for block in self.chain.blocks[:cut])
        stage = Stage(self.chain, cut, len(self.chain.blocks), self.recipe, self.stage.device)
        with _failures_of("measuring the cloud's blocks"):
            return measure_stage(stage, self.chain.features[cut], input_gradient=needs_gradient, repeats=repeats)

    def take_block(self, index: int, tensors: block_state.BlockTensors) -> None:
        """Take a block's state: at once before training, aside while it goes on. Raises ProtocolError if it does not fit."""
        if self.stage.first <= index < self.stage.stop:
            self.stage.load_block(index, tensors)
        elif self.attached:
            block_state.check(self.chain.blocks[index], self.stage.optimizer_keys, tensors)
            self._arriving[index] = tensors
        else:
            block_state.restore(self.chain.blocks[index], None, frozenset(), tensors)

    def check_arriving(self, block: int) -> int:
        """`block` if its state may be brought now. Raises ProtocolError or Refusal otherwise."""
        if block >= len(self.chain.blocks):
            raise ProtocolError(f"there is no block {block}; the model has {len(self.chain.blocks)} blocks, from 0")
        if self.attached and block >= self.stage.first:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"block {block} cannot be replaced now: while session {self.id} trains, only blocks of the edge can be "
                f"brought, 0 to {self.stage.first - 1}",
            )
        return block

    @property
    def feature(self) -> TensorSpec:
        """Shape and type of what crosses the cut, with the batch size of the edge's example."""
        return self.chain.features[self.deployment.cut]

    def compute(self, step: int, feature: Tensor, labels: Tensor) -> CloudStep:
        """Forward, loss and backward of one batch; `update` must follow.

        Raises ProtocolError for labels that do not fit, ModelError where the model or the loss fails.
        """
        started = time.perf_counter()
        with _failures_of(f"step {step}: the cloud's blocks"):
            graph: Graph = self.stage.forward(step, feature, input_gradient=self.sends_gradients)
        with self._failures_of_loss(graph.output, labels):
            loss, gradient = self._head.gradient(graph.output, labels)
        with _failures_of(f"step {step}: the backward of the cloud's blocks"):
            input_gradient = self.stage.backward(graph, gradient)
        return CloudStep(loss, input_gradient, time.perf_counter() - started)

    def update(self, step: int) -> float:
        """Apply the gradients of `step`; returns the seconds it took."""
        started = time.perf_counter()
        with _failures_of(f"step {step}: the update of the cloud's blocks"):
            self.stage.update(step)
        self.next_step = step + 1
        self._arriving.clear()  # the edge's blocks have moved on
        return time.perf_counter() - started

    def evaluate(self, feature: Tensor, labels: Tensor) -> BatchLoss:
        """The loss of one batch with the weights of now. Raises as `compute` does."""
        with _failures_of("in an evaluation the cloud's blocks"):
            output = self.stage.evaluate(feature)
        with self._failures_of_loss(output, labels):
            return self._head.evaluate(output, labels)

    @contextmanager
    def _failures_of_loss(self, output: Tensor, labels: Tensor) -> Iterator[None]:
        classes = output.shape[1] if output.dim() > 1 else output.shape[0]
        if self.recipe.loss == "cross_entropy" and not labels.is_floating_point():
            # On a GPU this would be an assertion of a kernel, after which the whole process can compute no more.
            given = labels[labels != _IGNORED_CLASS]
            if given.numel() and not 0 <= int(given.min()) <= int(given.max()) < classes:
                raise ProtocolError(
                    f"labels are {int(given.min())} to {int(given.max())}; the model's output has {classes} classes, so "
                    f"they must be 0 to {classes - 1}"
                )
        described = f"an output {tuple(output.shape)} and labels {labels.dtype} {tuple(labels.shape)}"
        with _failures_of(f"loss {self.recipe.loss!r} of {described}"):
            yield

    def check_named(self, session_id: str) -> None:
        """Refuse a message that names another session than the stream that it came on. Raises ProtocolError."""
        if session_id != self.id:
            raise ProtocolError(f"a message for session {session_id[:40]!r} came on a stream of session {self.id!r}")

    def check_owned(self, block: int) -> int:
        """`block` if the cloud runs it. Raises ProtocolError otherwise."""
        if not self.stage.first <= block < self.stage.stop:
            raise ProtocolError(
                f"block {block} is not in the cloud; blocks {self.stage.first} to {self.stage.stop - 1} are"
            )
        return block

    def block_digests(self) -> list[int]:
        """Digests of all blocks, in order."""
        return [block_state.digest(block) for block in self.chain.blocks]


def open_session(
    request: OpenSessionRequest, session_id: str, allowed: Sequence[str], limits: Limits, on: device
) -> Session:
    """Build a session from what the edge asked for, judging every part of it.

    Raises ModelError, ConfigError, ProtocolError or Refusal with the sentence that the edge's user will read.
    """
    try:
        recipe = Recipe.model_validate_json(request.recipe_json or "{}")
    except ValidationError as cause:
        first = cause.errors(include_url=False)[0]
        raise ConfigError(f"the recipe: {'.'.join(map(str, first['loc'])) or 'as a whole'}: {first['msg']}") from cause
    head = LossHead(recipe.loss, allowed)
    dimensions = len(request.example.shape)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ProtocolError(f"the example batch has {dimensions} dimensions; it must have 1 to {MAX_DIMENSIONS}")
    example = TensorSpec(tuple(request.example.shape), torch_dtype(request.example.dtype))
    if not 0 < example.bytes <= limits.tensor_bytes:
        raise ProtocolError(
            f"the example batch {example.shape} has {example.bytes} bytes; it must have 1 to {limits.tensor_bytes}"
        )
    kwargs = parse_kwargs(request.model.kwargs_json)
    chain = build_checked_chain(
        request.model.factory, kwargs, recipe.seed, example.example(), frozen=recipe.frozen, allowed_prefixes=allowed
    )
    check_cut(request.deployment.cut, chain)
    _check_deployment(request.deployment, limits)
    names = [block.name for block in chain.blocks]
    if names != list(request.block_names):
        raise Refusal(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the edge's model is a chain of {len(request.block_names)} blocks and the trainer's of {len(names)}, or their "
            f"names differ: both sides must import the same {request.model.factory!r}",
        )
    return Session(session_id, chain, recipe, request.deployment, head, limits, on)


@contextmanager
def _failures_of(what: str) -> Iterator[None]:
    """Models and losses are their users' own and may raise anything; it is the edge's user who has to read it."""
    try:
        yield
    except Exception as cause:
        raise ModelError(f"{what} failed with {type(cause).__name__}: {cause}") from cause


def _check_deployment(deployment: Deployment, limits: Limits) -> None:
    if deployment.staleness > limits.staleness:
        raise ProtocolError(
            f"a staleness of {deployment.staleness} is more than this trainer's limit of {limits.staleness} "
            "(server.max_staleness)"
        )
    for name in (deployment.codec, deployment.downlink_codec):
        codec_by_name(name)
