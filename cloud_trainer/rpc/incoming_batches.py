"""Batches on their way in: which tensor of them may be announced next, and which batch is whole.

Knows nothing of what carries the tensors; the assembler of a stream asks `accept` before it takes memory for one.
"""

from dataclasses import dataclass

from cloud_trainer.sessions.session import CutSession
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.runtime import ExpectedTensor, judge
from shared.tensor_wire import slot_codec
from shared.training.losses import check_labels
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One batch as it has come up, whole and not decoded."""

    labels: WireTensor
    features: tuple[WireTensor, ...]
    """One for each tensor that crosses the cut, slot by slot."""


class IncomingBatches:
    """Takes batches one after the other: the labels of each, then its features slot by slot, of the session's shapes and codec.

    The chunks of one batch's tensors may be mixed. A batch may be announced once the one before it is whole.
    """

    def __init__(self, session: CutSession, first_labels: TensorKey, max_tensor_bytes: int) -> None:
        """first_labels: key of the labels that come first, those of a step or those of batch 1 of an evaluation."""
        self._session = session
        self._labels_key = first_labels
        """The key of the labels of the batch that is under way or, between two batches, comes next."""
        self._labels_spec: TensorSpec | None = None
        """Shape and type of the announced labels; None between two batches."""
        self._announced_features = 0
        self._received: dict[TensorKey, WireTensor] = {}
        self._max_bytes = max_tensor_bytes
        self._changed: Deployment | None = None
        """What the edge changed the deployment to last; None before the first change."""

    @property
    def between_batches(self) -> bool:
        """Whether no batch is announced that is not whole yet."""
        return self._labels_spec is None

    @property
    def deployment(self) -> Deployment:
        """What the next batch must come under: what the edge changed it to last, or what a migration committed since."""
        held = self._session.training.deployment
        return self._changed if self._changed is not None and self._changed.version > held.version else held

    def change_deployment(self, deployment: Deployment) -> None:
        """Take other codecs or another K for the batches that come from now on.

        The session takes the change over with the first batch that it computes: until then, a lost link may undo both.
        Raises ProtocolError when the deployment does not follow the one before, ConfigError for an unknown codec.
        """
        self._session.training.check_change(self.deployment, deployment)
        self._changed = deployment

    def accept(self, frame: Frame) -> None:
        """Agree to the tensor that a frame announces. Raises as `judge` does; StatusError for labels of too many bytes."""
        tensor = judge(frame, self._expected())
        if self._labels_spec is None:
            self._session.memory.take_labels(tensor.bytes, self._session.batches)
            self._labels_spec = tensor
        else:
            self._announced_features += 1

    def add(self, tensor: WireTensor) -> EncodedBatch | None:
        """Add a tensor that was accepted and is whole now. Returns the batch that it completes, or None."""
        self._received[tensor.key] = tensor
        slots = range(len(self._session.training.feature_specs))
        if len(self._received) < 1 + len(slots):
            return None
        features = tuple(self._received[self._feature_key(slot)] for slot in slots)
        batch = EncodedBatch(self._received[self._labels_key], features)
        self._received.clear()
        self._labels_spec, self._announced_features = None, 0
        self._labels_key = self._labels_key.following
        return batch

    def _expected(self) -> ExpectedTensor | None:
        """The tensor that may be announced next; None while all of a batch is announced and not all of it is here."""
        deployment, specs, slot = self.deployment, self._session.training.feature_specs, self._announced_features
        if self._labels_spec is None:
            return ExpectedTensor(self._labels_key, deployment.version, "raw", self._check_labels, self._max_bytes)
        if slot == len(specs):
            return None
        spec = specs[slot]
        tensor = TensorSpec((self._labels_spec.shape[0], *spec.shape[1:]), spec.dtype)
        codec = slot_codec(deployment.codec, spec.dtype).name
        return ExpectedTensor(self._feature_key(slot), deployment.version, codec, tensor, self._max_bytes)

    def _feature_key(self, slot: int) -> TensorKey:
        """Key of a feature of the announced batch."""
        return self._labels_key._replace(role=Role.ROLE_FEATURE, block=self.deployment.cut, slot=slot)

    def _check_labels(self, labels: TensorSpec) -> None:
        session = self._session
        most = session.training.feature_specs[0].shape[0]
        if not labels.shape or not 1 <= labels.shape[0] <= most:
            raise ProtocolError(f"{self._labels_key}: labels {labels.shape} came; a batch has 1 to {most} samples")
        check_labels(
            session.training.recipe.loss, session.training.chain.features[0], session.training.chain.output, labels
        )
