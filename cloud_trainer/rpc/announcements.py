"""What an edge may send next: every announced tensor is judged here before memory is taken for it."""

import grpc

from cloud_trainer.sessions.session import Session
from shared.codec import Codec, codec_by_name
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.tensor_wire import check_announcement, most_bytes, torch_dtype
from shared.training.losses import check_labels
from shared.transport.rpc.status import Refusal
from shared.transport.stream.framing import role_name
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


class BatchAnnouncements:
    """Labels and features in turn, numbered from `next_number`, of the session's shape and codec."""

    def __init__(self, session: Session, next_number: int, max_tensor_bytes: int) -> None:
        self._session = session
        self._number = next_number
        self._due: Role.ValueType = Role.ROLE_LABEL
        self._samples = 0
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
        """Agree to a tensor, or raise ProtocolError or Refusal."""
        deployment = self.deployment
        check_epoch(frame, deployment)
        if frame.step != self._number:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, f"step {frame.step} came where step {self._number} was due"
            )
        if frame.role != self._due:
            raise ProtocolError(
                f"step {frame.step}: the {role_name(frame.role)} came where the {role_name(self._due)} was due"
            )
        if self._due == Role.ROLE_LABEL:
            self._accept_label(frame)
            self._due = Role.ROLE_FEATURE
        else:
            self._accept_feature(frame, deployment)
            self._due = Role.ROLE_LABEL
            self._number += 1

    def _accept_label(self, frame: Frame) -> None:
        session, shape = self._session, tuple(frame.tensor.shape)
        most = session.feature.shape[0]
        if not shape or not 1 <= shape[0] <= most:
            raise ProtocolError(f"step {frame.step}: labels {shape} came; a batch has 1 to {most} samples")
        labels = TensorSpec(shape, torch_dtype(frame.tensor.dtype))
        check_labels(session.recipe.loss, session.chain.features[0], session.chain.features[-1], labels)
        self._check_size(frame, codec_by_name("raw"), labels)
        session.memory.take_labels(labels.bytes, self.deployment)
        self._samples = shape[0]

    def _accept_feature(self, frame: Frame, deployment: Deployment) -> None:
        expected = self._session.feature
        shape = tuple(frame.tensor.shape)
        if shape != (due := (self._samples, *expected.shape[1:])):
            raise ProtocolError(
                f"step {frame.step}: a feature {shape} came; at cut {deployment.cut}, for {self._samples} labels, it is {due}"
            )
        if torch_dtype(frame.tensor.dtype) != expected.dtype:
            raise ProtocolError(f"step {frame.step}: the feature's type is not {expected.dtype}")
        self._check_size(frame, codec_by_name(deployment.codec), TensorSpec(shape, expected.dtype))

    def _check_size(self, frame: Frame, codec: Codec, tensor: TensorSpec) -> None:
        check_announcement(frame, codec, min(self._max_bytes, most_bytes(tensor, codec)))


def check_epoch(frame: Frame, deployment: Deployment) -> None:
    """Refuse what was made under another deployment than the one in force."""
    if frame.deployment_epoch != deployment.epoch:
        raise Refusal(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"a frame of deployment {frame.deployment_epoch} came; deployment {deployment.epoch} is in force",
        )
