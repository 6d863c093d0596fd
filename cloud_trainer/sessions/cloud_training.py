"""The cloud's blocks in training: their stage, the step that comes next, and the answers that a lost link may ask for again.

Its methods compute and are called from the compute thread; it knows neither streams nor who is attached.
"""

import time
from typing import Any

import grpc
import structlog
from google.protobuf import json_format
from torch import Tensor

from cloud_trainer.sessions.answers import Answers
from cloud_trainer.sessions.arriving import ArrivingBlocks
from cloud_trainer.sessions.cloud_batch import CloudBatch, CloudStep, StepListener
from cloud_trainer.sessions.memory import COPIES, Batches, SessionMemory
from shared.checkpoint import Checkpoint
from shared.errors import ProtocolError, StorageError
from shared.execution.failures import translate_failures, translate_loss_failures
from shared.model.build import check_cut
from shared.model.chain import Chain
from shared.model.features import Features, FeatureSpecs, Gradients, specs_bytes
from shared.training import block_state
from shared.training.block_state import element_bytes
from shared.training.device import synchronise
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import copy_state, put_back
from shared.training.losses import BatchLoss, LossHead, widened
from shared.training.recipe import Recipe
from shared.training.stage import Graph, Stage, with_zeros
from shared.training.step_log import StepLog
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.trainer_pb2 import Attach, Deployment, StepReport

_log = structlog.get_logger(__name__)


class CloudTraining:
    """Blocks [cut, L) of one session."""

    def __init__(
        self,
        session_id: str,
        held: HeldBlocks,
        head: LossHead,
        deployment: Deployment,
        memory: SessionMemory,
        step_log: StepLog | None = None,
    ) -> None:
        """step_log: where every update is written down, if anywhere."""
        self.held = held
        self.stage = _stage(held, deployment)
        self.deployment = deployment
        self.next_step = 0
        """The step that comes next: all earlier ones are in the weights."""
        self.lineage = 0
        """The session term in which both sides last went back to a checkpoint; 0 before the first time."""
        self.answers = Answers()
        self.half_done = False
        """Whether a step failed half-way, after which training can go on only from a checkpoint."""
        self._no_gradient = False
        """Whether the cloud's blocks passed no gradient back to the features in some step since the cut moved last."""
        self._session_id = session_id
        self._head = head
        self._memory = memory
        self._arriving = ArrivingBlocks(memory)
        self._step_log = step_log

    @property
    def chain(self) -> Chain:
        """The whole model."""
        return self.held.chain

    @property
    def recipe(self) -> Recipe:
        """How it is trained."""
        return self.held.recipe

    @property
    def feature_specs(self) -> FeatureSpecs:
        """Shapes and types of what crosses the cut, with the batch size of the edge's example."""
        return self.chain.features[self.deployment.cut]

    @property
    def gradients_return(self) -> bool:
        """Whether error gradients return to the edge, since something there learns."""
        return self.chain.gradients_return(self.deployment.cut)

    @property
    def batches(self) -> Batches:
        """What may be in flight."""
        return batches_of(self.chain, self.deployment)

    def train(self, batch: CloudBatch, listener: StepListener) -> StepReport:
        """Do one step. The edge waits for the gradients, so the listener gets them before the cloud's own update.

        Raises as `forward_and_backward` does; after that, training can go on only from a checkpoint.
        """
        started = time.monotonic_ns()
        self.answers.forget_arrived(batch.step, batch.deployment.staleness)
        self.deployment = batch.deployment
        try:
            done = self.forward_and_backward(batch.step, batch.features, batch.labels)
            if done.gradients is not None:
                self.answers.gradients.keep(batch.step, (batch.deployment, done.gradients))
                listener.gradients_computed(batch, done.gradients)
            seconds = done.seconds + self.update(batch.step)
            if self._step_log is not None:
                self._step_log.applied(batch.step, *map(element_bytes, batch.features), element_bytes(batch.labels))
        except BaseException:
            self.half_done = True
            raise
        report = StepReport(
            step=batch.step,
            loss=done.loss.loss,
            correct=done.loss.correct,
            compute_seconds=seconds,
            compute_start_nanoseconds=started,
            no_gradient=self._no_gradient,
        )
        self.answers.reports.keep(batch.step, report)
        listener.step_computed(report, done.loss.samples)
        return report

    def forward_and_backward(self, step: int, features: Features, labels: Tensor) -> CloudStep:
        """Forward, loss and backward of one batch; `update` must follow.

        The gradients are on the host when this returns: copied later, they would wait on a GPU until the update is done.
        Raises DeviceError where the device has failed for good, ProtocolError for labels that do not fit, ModelError where
        the model or the loss fails.
        """
        started = time.perf_counter()
        with translate_failures(f"step {step} in the cloud", self.stage.device):
            graph: Graph = self.stage.forward(step, features, input_gradient=self.gradients_return)
        labels = widened(labels)
        with translate_loss_failures(self.recipe.loss, graph.outputs, labels):
            loss, output_gradients = self._head.gradient(graph.outputs, labels)
        with translate_failures(f"step {step} in the cloud", self.stage.device):
            found = self.stage.backward(graph, output_gradients)
            gradients = self._gradients_to_return(found, features) if self.gradients_return else None
            synchronise(self.stage.device)
        return CloudStep(loss, gradients, time.perf_counter() - started)

    def _gradients_to_return(self, found: Gradients, features: Features) -> Gradients:
        """The error gradients at `features`, on the host: zeros where none was found at a float."""
        if not self._no_gradient and all(gradient is None for gradient in found):
            self._no_gradient = True
            _log.warning(
                "the cloud's blocks pass no gradient on, so the blocks before them do not learn",
                session=self._session_id,
                block=self.stage.blocks[0].name,
            )
        placed = tuple(None if gradient is None else gradient.to("cpu") for gradient in found)
        return with_zeros(placed, self.feature_specs, len(features[0]))

    def update(self, step: int) -> float:
        """Update the weights by the gradients of `step`. Returns the seconds that this took."""
        started = time.perf_counter()
        with translate_failures(f"step {step} in the cloud", self.stage.device):
            self.stage.update(step)
            synchronise(self.stage.device)
        self.next_step = step + 1
        self._arriving.forget()  # the edge trains its blocks further
        return time.perf_counter() - started

    def evaluate(self, features: Features, labels: Tensor) -> BatchLoss:
        """The loss of one batch with the current weights. Raises as `forward_and_backward` does."""
        with translate_failures("the evaluation in the cloud", self.stage.device):
            outputs = self.stage.evaluate(features)
        labels = widened(labels)
        with translate_loss_failures(self.recipe.loss, outputs, labels):
            return self._head.evaluate(outputs, labels)

    def continues(self, attach: Attach) -> bool:
        """Whether an edge that attaches can go on from its state in memory with the state that is here."""
        position = attach.position
        return (
            attach.HasField("position")
            and position.lineage == self.lineage
            and not self.half_done
            and self.answers.cover(position, self.next_step, gradients_return=self.gradients_return)
        )

    def copy(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A copy of the state between two steps, to be written while training goes on: facts and tensors."""
        facts = {"deployment": json_format.MessageToDict(self.deployment)}
        return facts, copy_state(self.held)

    def restore(self, checkpoint: Checkpoint, lineage: int) -> None:
        """Restore a checkpoint, and begin a new lineage.

        Raises an IsthmusError when it does not fit; the session must not be used after that.
        """
        try:
            deployment = json_format.ParseDict(checkpoint.facts["deployment"], Deployment())
            check_cut(deployment.cut, self.chain)
            self._permit(deployment)
        except (KeyError, TypeError, json_format.ParseError) as cause:
            raise StorageError(f"checkpoint {checkpoint.name}: its deployment cannot be read") from cause
        put_back(self.held, range(deployment.cut, len(self.chain.blocks)), checkpoint.data)
        self.stage = _stage(self.held, deployment)
        self.deployment = deployment
        self.next_step, self.lineage = checkpoint.name.step, lineage
        if self._step_log is not None:
            self._step_log.rolled_back(self.next_step)
        self.answers.clear()
        self._arriving.forget()
        self.half_done = False

    def check_change(self, before: Deployment, after: Deployment) -> None:
        """Refuse a change of codecs or of K that is not permitted.

        Raises ProtocolError when it does not follow the deployment before, and as `SessionMemory.permit` does.
        """
        if after.version <= before.version or after.cut != before.cut:
            raise ProtocolError(
                f"deployment {after.version} at cut {after.cut} came; a later one than {before.version}, at cut {before.cut}, "
                "could follow"
            )
        self._permit(after)

    def migrate(self, deployment: Deployment, next_step: int) -> None:
        """Move the cut, whole or not at all; a deployment that is in force already is no error.

        Raises StatusError when it does not follow the one in force, comes at another step, or a block has not arrived;
        ModelError for a cut out of range.
        """
        if deployment == self.deployment:
            return
        check_cut(deployment.cut, self.chain)
        self._permit(deployment)
        missing = [
            index
            for index in range(deployment.cut, self.deployment.cut)
            if index not in self._arriving.blocks and not block_state.is_static(self.chain.blocks[index])
        ]
        if deployment.version <= self.deployment.version or next_step != self.next_step or missing:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"deployment {deployment.version} at step {next_step} cannot follow deployment {self.deployment.version} at "
                f"step {self.next_step}" + (f" without blocks {missing}" if missing else ""),
            )
        arriving = {index: state for index, state in self._arriving.blocks.items() if index >= deployment.cut}
        self.held.hold(range(deployment.cut, len(self.chain.blocks)), arriving)
        self.stage = _stage(self.held, deployment)
        self._arriving.forget()
        self.deployment = deployment
        self._no_gradient = False

    def take_block(self, index: int, tensors: block_state.BlockTensors, *, aside: bool) -> None:
        """Take a block's state: at once, or aside until the cut moves. Raises ProtocolError if it does not fit."""
        block = self.chain.blocks[index]
        if index in self.held.indices:
            self.held.load_block(index, tensors)
        elif aside and not block_state.is_static(block):
            self.held.check_block(index, tensors)
            self._arriving.put(index, tensors)
        else:
            block_state.restore(block, None, None, tensors)

    def check_owned(self, block: int) -> int:
        """`block` if the cloud runs it. Raises ProtocolError otherwise."""
        if not self.stage.first <= block < self.stage.stop:
            there = f"blocks {self.stage.first} to {self.stage.stop - 1} are" if self.stage.blocks else "none is"
            raise ProtocolError(f"block {block} is not in the cloud; {there}")
        return block

    def _permit(self, deployment: Deployment) -> None:
        """See `SessionMemory.permit`."""
        codecs = (deployment.codec, deployment.downlink_codec)
        self._memory.permit(deployment.staleness, codecs, batches_of(self.chain, deployment))


def batches_of(chain: Chain, deployment: Deployment) -> Batches:
    """What may be in flight under a deployment, whose cut the chain has."""
    return Batches(deployment.staleness + 1, COPIES * specs_bytes(chain.features[deployment.cut]))


def _stage(held: HeldBlocks, deployment: Deployment) -> Stage:
    """The cloud's blocks under a deployment."""
    return Stage(held, deployment.cut, len(held.chain.blocks))
