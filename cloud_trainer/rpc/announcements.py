"""What an edge may send next of its batches; `shared.runtime` judges every announced tensor against it."""

from dataclasses import dataclass

from cloud_trainer.sessions.session import Session
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.runtime import ExpectedTensor, judge
from shared.tensor_wire import slot_codec
from shared.training.losses import check_labels
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """All that comes up of one batch."""

    encoded_labels: WireTensor
    encoded_features: tuple[WireTensor, ...]
    """One for each tensor that crosses the cut, slot by slot."""


class BatchAnnouncements:
    """Batches one after the other, each its labels and then, slot by slot, features of the session's shapes and codec.

    The chunks of these may be mixed; a batch is announced when the one before it is whole.
    """

    def __init__(self, session: Session, first: TensorKey, max_tensor_bytes: int) -> None:
        """first: the labels that come first: those of a step, or those of batch 1 of an evaluation."""
        self._session = session
        self._expected_labels = first
        """The labels of the batch that is announced or comes next."""
        self._labels: TensorSpec | None = None
        """The shape and type of the announced batch's labels; None between two batches."""
        self._announced_features = 0
        self._received: dict[TensorKey, WireTensor] = {}
        self._max_bytes = max_tensor_bytes
        self._changed: Deployment | None = None
        """What the edge changed the deployment to last; None before the first change."""

    @property
    def between_batches(self) -> bool:
        """Whether no batch is half received."""
        return self._labels is None

    @property
    def deployment(self) -> Deployment:
        """What the next batch must come under: what the edge changed it to last, or what a migration committed since."""
        held = self._session.training.deployment
        return self._changed if self._changed is not None and self._changed.version > held.version else held

    def change_deployment(self, deployment: Deployment) -> None:
        """Take other codecs or another K for the batches that come from now on.

        The session takes them over with the first batch that it computes, for a lost link may take that batch back.
        Raises ProtocolError when the deployment does not follow the one before, ConfigError for an unknown codec.
        """
        self._session.training.check_change(self.deployment, deployment)
        self._changed = deployment

    def accept(self, frame: Frame) -> None:
        """Agree to a tensor, or raise what `judge` does; StatusError where there is no memory for labels like these."""
        tensor = judge(frame, self._expected())
        if self._labels is None:
            self._session.memory.take_labels(tensor.bytes, self._session.training.deployment)
            self._labels = tensor
        else:
            self._announced_features += 1

    def received(self, tensor: WireTensor) -> ReceivedBatch | None:
        """Take note that an accepted tensor is whole; the batch, when all of it is."""
        self._received[tensor.key] = tensor
        slots = range(len(self._session.training.feature_specs))
        if len(self._received) <= len(slots):
            return None
        features = tuple(self._received[self._feature_key(slot)] for slot in slots)
        batch = ReceivedBatch(self._received[self._expected_labels], features)
        self._received.clear()
        self._labels, self._announced_features = None, 0
        self._expected_labels = self._expected_labels.following
        return batch

    def _expected(self) -> ExpectedTensor | None:
        """What may be announced next; nothing until the batch that is announced is whole."""
        deployment, specs, slot = self.deployment, self._session.training.feature_specs, self._announced_features
        if self._labels is None:
            return ExpectedTensor(self._expected_labels, deployment.version, "raw", self._check_labels, self._max_bytes)
        if slot == len(specs):
            return None
        spec = specs[slot]
        tensor = TensorSpec((self._labels.shape[0], *spec.shape[1:]), spec.dtype)
        codec = slot_codec(deployment.codec, spec.dtype).name
        return ExpectedTensor(self._feature_key(slot), deployment.version, codec, tensor, self._max_bytes)

    def _feature_key(self, slot: int) -> TensorKey:
        """The key of a feature of the announced batch."""
        return self._expected_labels._replace(role=Role.ROLE_FEATURE, block=self.deployment.cut, slot=slot)

    def _check_labels(self, labels: TensorSpec) -> None:
        session = self._session
        most = session.training.feature_specs[0].shape[0]
        if not labels.shape or not 1 <= labels.shape[0] <= most:
            raise ProtocolError(f"{self._expected_labels}: labels {labels.shape} came; a batch has 1 to {most} samples")
        check_labels(
            session.training.recipe.loss, session.training.chain.features[0], session.training.chain.output, labels
        )
