"""One training run of one edge, as the trainer holds it: the chain, the cloud's stage of it, and the next step.

Its methods compute and are called from the compute thread; it knows nothing of streams.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf import json_format
from torch import Tensor, device

from cloud_trainer.sessions.answers import Answers
from cloud_trainer.sessions.failures import failures_of, failures_of_loss
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import SessionMemory
from shared.checkpoint import Checkpoint, CheckpointName
from shared.errors import ProtocolError, StorageError
from shared.model.build import check_cut, check_range
from shared.model.chain import Chain
from shared.model.features import Boundary, Features, Gradients
from shared.training import block_state
from shared.training.device import synchronise
from shared.training.losses import BatchLoss, LossHead, widened
from shared.training.measure import seconds_of, stage_step
from shared.training.recipe import Recipe
from shared.training.stage import Graph, Stage, with_zeros
from shared.training.stage_state import copy_state, put_back
from shared.training.step_log import StepLog
from shared.transport.rpc.status import Refusal
from shared.wire.isthmus.v1.trainer_pb2 import Attach, Deployment, Fence, OpenSessionRequest

_log = structlog.get_logger(__name__)
_MAX_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class CloudStep:
    """What one step gave: its loss, the error gradients at the features (None where the edge needs none), and T3 so far."""

    loss: BatchLoss
    gradients: Gradients | None
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
        memory: SessionMemory,
        on: device,
    ) -> None:
        self.id = session_id
        self.chain = chain
        self.recipe = recipe
        self.deployment = deployment
        self.stage = Stage(chain, deployment.cut, len(chain.blocks), recipe, on)
        self.next_step = 0
        self.lineage = 0
        """Which life of the session this is: the session term with which it last went back to a checkpoint."""
        self.session_term = 0
        """Of the edge that attached last; 0 before the first."""
        self.request = OpenSessionRequest()
        """What opened it."""
        self.serving: asyncio.Task[None] | None = None
        """The stream that is attached."""
        self.lost_seconds: float | None = None
        """When its edge was lost, by time.monotonic; None while it is there."""
        self.answers = Answers()
        self.step_log: StepLog | None = None
        """Where every update is written down, if anywhere."""
        self.spoilt = False
        """A step failed half-way: only a checkpoint can be gone on with."""
        self.forgotten = False
        """Closed for good: nothing is kept that could be gone on with."""
        self.measured = False
        self.detached = False
        """Whether the cloud's blocks have passed no gradient on in some step."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.loss = 0.0
        self.downlink_bits_per_second = 0.0
        self._head = head
        self._limits = limits
        self._arriving: dict[int, block_state.BlockTensors] = {}
        self.memory = memory

    @property
    def attached(self) -> bool:
        """Whether a training stream is attached."""
        return self.serving is not None

    async def end_stream(self) -> None:
        """End the stream that is attached, if any; when this returns, nothing that it brought is computed any more."""
        if self.serving is not None:
            self.serving.cancel()
            await asyncio.wait({self.serving})

    @property
    def begun(self) -> bool:
        """Whether a training stream was ever attached."""
        return self.session_term > 0

    def check_fence(self, fence: Fence) -> None:
        """Refuse a call of an edge that is no longer the one that attached last. Raises Refusal."""
        if fence.session_term < self.session_term:
            raise Refusal(
                grpc.StatusCode.ABORTED,
                f"session {self.id} was attached with term {self.session_term}; a call of term {fence.session_term} came",
            )

    def continues(self, attach: Attach) -> bool:
        """Whether an edge that attaches can go on from what it has in memory with what is here."""
        position = attach.position
        return (
            attach.HasField("position")
            and position.lineage == self.lineage
            and not self.spoilt
            and self.answers.cover(position, self.next_step, gradients_go=self.sends_gradients)
        )

    def copy(self) -> tuple[CheckpointName, dict[str, Any], dict[str, Tensor]]:
        """The state between two steps, to be written while training goes on: its name, facts and tensors."""
        facts = {"deployment": json_format.MessageToDict(self.deployment)}
        return CheckpointName(self.lineage, self.next_step), facts, copy_state(self.stage)

    def go_back(self, checkpoint: Checkpoint, lineage: int) -> None:
        """Be as a checkpoint says, and begin another life.

        Raises an IsthmusError when it does not fit; the session is of no use then.
        """
        try:
            deployment = json_format.ParseDict(checkpoint.facts["deployment"], Deployment())
            check_cut(deployment.cut, self.chain)
            self._check_deployment(deployment)
        except (KeyError, TypeError, json_format.ParseError) as cause:
            raise StorageError(f"checkpoint {checkpoint.name}: its deployment cannot be read") from cause
        put_back(self.stage, deployment.cut, len(self.chain.blocks), checkpoint.data)
        self.deployment = deployment
        self.next_step, self.lineage = checkpoint.name.step, lineage
        if self.step_log is not None:
            self.step_log.went_back(self.next_step)
        self.answers.clear()
        self._forget_arriving()
        self.spoilt = False

    @property
    def sends_gradients(self) -> bool:
        """Whether anything on the edge learns."""
        return bool(self.chain.gradient_slots(self.deployment.cut))

    def check_change(self, before: Deployment, after: Deployment) -> None:
        """Refuse a change of codecs or of K that cannot be.

        Raises ProtocolError when it does not follow the deployment before, ConfigError for an unknown codec.
        """
        if after.version <= before.version or after.cut != before.cut:
            raise ProtocolError(
                f"deployment {after.version} at cut {after.cut} came; a later one than {before.version}, at cut {before.cut}, "
                "could follow"
            )
        self._check_deployment(after)

    def _check_deployment(self, deployment: Deployment) -> None:
        self._limits.check_deployment(deployment)
        self.memory.check(deployment)

    @property
    def max_staleness(self) -> int:
        """The largest K that the session may have at its cut."""
        return self.memory.max_staleness(self.deployment)

    def migrate(self, deployment: Deployment, next_step: int, fence: Fence) -> None:
        """Move the cut, whole or not at all; a deployment that is in force already is no error.

        Raises Refusal when it does not follow the one in force, comes at another step, or a block has not arrived;
        ModelError for a cut out of range.
        """
        self.check_fence(fence)
        if deployment == self.deployment:
            return
        check_cut(deployment.cut, self.chain)
        self._check_deployment(deployment)
        missing = [
            index
            for index in range(deployment.cut, self.deployment.cut)
            if index not in self._arriving and not block_state.is_static(self.chain.blocks[index])
        ]
        if deployment.version <= self.deployment.version or next_step != self.next_step or missing:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"deployment {deployment.version} at step {next_step} cannot follow deployment {self.deployment.version} at "
                f"step {self.next_step}" + (f" without blocks {missing}" if missing else ""),
            )
        arriving = {index: self._arriving[index] for index in self._arriving if index >= deployment.cut}
        self.stage.move(deployment.cut, len(self.chain.blocks), arriving)
        self._forget_arriving()
        self.deployment = deployment
        self.detached = False

    def measuring(self, cut: int, repeats: int) -> Callable[[], float]:
        """What does one step of blocks [cut, L) on made-up features, which spoils the weights, and returns its seconds.

        repeats: how often it is to be called. Raises Refusal when the session trains, ModelError for a cut out of range,
        ProtocolError for too many repeats.
        """
        check_range(cut, self.chain)  # made-up features cross it, so it may be any
        if not 1 <= repeats <= _MAX_REPEATS:
            raise ProtocolError(f"{repeats} repeats were asked for; 1 to {_MAX_REPEATS} can be")
        if self.begun:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {self.id} trains; measuring would spoil its weights"
            )
        self.measured = True
        needs_gradient = bool(self.chain.gradient_slots(cut))
        stage = Stage(self.chain, cut, len(self.chain.blocks), self.recipe, self.stage.device)
        step = stage_step(stage, self.chain.features[cut], input_gradient=needs_gradient)

        def measured() -> float:
            with failures_of("measuring the cloud's blocks", self.stage.device):
                return seconds_of(step)

        return measured

    def take_block(self, index: int, tensors: block_state.BlockTensors) -> None:
        """Take a block's state: at once before training, aside while it goes on. Raises ProtocolError if it does not fit."""
        if self.stage.first <= index < self.stage.stop:
            self.stage.load_block(index, tensors)
        elif self.begun and not block_state.is_static(self.chain.blocks[index]):
            self.stage.check_block(index, tensors)
            self._arriving[index] = tensors
            self._count_arriving()
        else:
            block_state.restore(self.chain.blocks[index], None, None, tensors)

    def _forget_arriving(self) -> None:
        if self._arriving:
            self._arriving.clear()
            self._count_arriving()

    def _count_arriving(self) -> None:
        self.memory.set_aside(sum(tensor.nbytes for state in self._arriving.values() for tensor in state.values()))

    def check_arriving(self, block: int) -> int:
        """`block` if its state may be brought now. Raises ProtocolError or Refusal otherwise."""
        if block >= len(self.chain.blocks):
            raise ProtocolError(f"there is no block {block}; the model has {len(self.chain.blocks)} blocks, from 0")
        if self.begun and block >= self.stage.first and not block_state.is_static(self.chain.blocks[block]):
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"block {block} cannot be replaced now: once session {self.id} trains, only blocks of the edge can be "
                f"brought, 0 to {self.stage.first - 1}",
            )
        return block

    @property
    def boundary(self) -> Boundary:
        """Shapes and types of what crosses the cut, with the batch size of the edge's example."""
        return self.chain.features[self.deployment.cut]

    def compute(self, step: int, features: Features, labels: Tensor) -> CloudStep:
        """Forward, loss and backward of one batch; `update` must follow.

        The gradients are on the host when this returns: copied later, they would wait for the update behind which they queue
        on a GPU. Raises DeviceError where that failed for good, ProtocolError for labels that do not fit, ModelError where the
        model or the loss fails.
        """
        started = time.perf_counter()
        with failures_of(f"step {step} in the cloud", self.stage.device):
            graph: Graph = self.stage.forward(step, features, input_gradient=self.sends_gradients)
        labels = widened(labels)
        with failures_of_loss(self.recipe.loss, graph.outputs, labels):
            loss, output_gradients = self._head.gradient(graph.outputs, labels)
        with failures_of(f"step {step} in the cloud", self.stage.device):
            found = self.stage.backward(graph, output_gradients)
            gradients = self._returned(found, features) if self.sends_gradients else None
            synchronise(self.stage.device)
        return CloudStep(loss, gradients, time.perf_counter() - started)

    def _returned(self, found: Gradients, features: Features) -> Gradients:
        """What the edge waits for, on the host."""
        if not self.detached and all(gradient is None for gradient in found):
            self.detached = True
            _log.warning(
                "the cloud's blocks pass no gradient on, so the blocks before them do not learn",
                session=self.id,
                block=self.stage.blocks[0].name,
            )
        placed = tuple(None if gradient is None else gradient.to("cpu") for gradient in found)
        return with_zeros(placed, features)

    def update(self, step: int) -> float:
        """Apply the gradients of `step`; returns the seconds it took."""
        started = time.perf_counter()
        with failures_of(f"step {step} in the cloud", self.stage.device):
            self.stage.update(step)
            synchronise(self.stage.device)
        self.next_step = step + 1
        self._forget_arriving()  # the edge's blocks have moved on
        return time.perf_counter() - started

    def evaluate(self, features: Features, labels: Tensor) -> BatchLoss:
        """The loss of one batch with the weights of now. Raises as `compute` does."""
        with failures_of("the evaluation in the cloud", self.stage.device):
            outputs = self.stage.evaluate(features)
        labels = widened(labels)
        with failures_of_loss(self.recipe.loss, outputs, labels):
            return self._head.evaluate(outputs, labels)

    def check_named(self, session_id: str) -> None:
        """Refuse a message that names another session than the stream that it came on. Raises ProtocolError."""
        if session_id != self.id:
            raise ProtocolError(f"a message for session {session_id[:40]!r} came on a stream of session {self.id!r}")

    def check_owned(self, block: int) -> int:
        """`block` if the cloud runs it. Raises ProtocolError otherwise."""
        if not self.stage.first <= block < self.stage.stop:
            there = f"blocks {self.stage.first} to {self.stage.stop - 1} are" if self.stage.blocks else "none is"
            raise ProtocolError(f"block {block} is not in the cloud; {there}")
        return block

    def block_digests(self) -> list[int]:
        """Digests of all blocks, in order."""
        return [block_state.digest(block) for block in self.chain.blocks]
