"""What an edge may send next of its batches; `shared.runtime` judges every announced tensor against it."""

from cloud_trainer.sessions.session import Session
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.runtime import Due, judge
from shared.training.losses import check_labels
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


class BatchAnnouncements:
    """Labels and features in turn, numbered from `next_number`, of the session's shape and codec."""

    def __init__(self, session: Session, next_number: int, max_tensor_bytes: int) -> None:
        self._session = session
        self._number = next_number
        self._labels: TensorSpec | None = None
        """Of the batch whose feature is due; None where labels are."""
        self._max_bytes = max_tensor_bytes
        self._announced: Deployment | None = None

    @property
    def deployment(self) -> Deployment:
        """What the next batch must come under: the last one announced, or a migration that was committed since."""
        held = self._session.deployment
        return self._announced if self._announced is not None and self._announced.epoch > held.epoch else held

    def announce(self, deployment: Deployment) -> None:
        """Take other codecs or another K for the batches that come from now on.

        The session takes them over with the first batch that it computes, for a lost link may take that batch back.
        Raises ProtocolError when the deployment does not follow the one before, ConfigError for an unknown codec.
        """
        self._session.check_change(self.deployment, deployment)
        self._announced = deployment

    def accept(self, frame: Frame) -> None:
        """Agree to a tensor, or raise what `judge` does; Refusal where there is no memory for labels like these."""
        deployment, feature = self.deployment, self._session.feature
        if self._labels is None:
            due = Due(self._number, Role.ROLE_LABEL, deployment.epoch, "raw", self._check_labels, self._max_bytes)
            labels = judge(frame, due)
            self._session.memory.take_labels(labels.bytes, self._session.deployment)
            self._labels = labels
        else:
            tensor = TensorSpec((self._labels.shape[0], *feature.shape[1:]), feature.dtype)
            role, codec = Role.ROLE_FEATURE, deployment.codec
            judge(frame, Due(self._number, role, deployment.epoch, codec, tensor, self._max_bytes))
            self._labels = None
            self._number += 1

    def _check_labels(self, labels: TensorSpec) -> None:
        session = self._session
        most = session.feature.shape[0]
        if not labels.shape or not 1 <= labels.shape[0] <= most:
            raise ProtocolError(f"step {self._number}: labels {labels.shape} came; a batch has 1 to {most} samples")
        check_labels(session.recipe.loss, session.chain.features[0], session.chain.output, labels)
