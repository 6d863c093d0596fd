"""What an edge may send next: every announced tensor is judged here before memory is taken for it."""

import grpc

from cloud_trainer.session import Session
from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.tensor_wire import check_announcement, torch_dtype
from shared.transport.framing import role_name
from shared.transport.status import Refusal
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


class BatchAnnouncements:
    """Features and labels in turn, numbered from `next_number`, of the session's shape and codec."""

    def __init__(self, session: Session, next_number: int, max_tensor_bytes: int) -> None:
        self._session = session
        self._number = next_number
        self._due: Role.ValueType = Role.ROLE_FEATURE
        self._samples = 0
        self._max_bytes = max_tensor_bytes

    def accept(self, frame: Frame) -> None:
        """Agree to a tensor, or raise ProtocolError or Refusal."""
        deployment = self._session.deployment
        check_epoch(frame, deployment)
        if frame.step != self._number:
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, f"step {frame.step} came where step {self._number} was due"
            )
        if frame.role != self._due:
            raise ProtocolError(
                f"step {frame.step}: the {role_name(frame.role)} came where the {role_name(self._due)} was due"
            )
        if self._due == Role.ROLE_FEATURE:
            self._accept_feature(frame, deployment)
            self._due = Role.ROLE_LABEL
        else:
            self._accept_label(frame)
            self._due = Role.ROLE_FEATURE
            self._number += 1

    def _accept_feature(self, frame: Frame, deployment: Deployment) -> None:
        expected = self._session.feature
        shape = tuple(frame.tensor.shape)
        fits = len(shape) == len(expected.shape) and shape[1:] == expected.shape[1:]
        if not fits or not 1 <= shape[0] <= expected.shape[0]:
            raise ProtocolError(
                f"step {frame.step}: a feature {shape} came; at cut {deployment.cut} it is "
                f"{expected.shape}, or fewer samples"
            )
        if torch_dtype(frame.tensor.dtype) != expected.dtype:
            raise ProtocolError(f"step {frame.step}: the feature's type is not {expected.dtype}")
        check_announcement(frame, codec_by_name(deployment.codec), self._max_bytes)
        self._samples = shape[0]

    def _accept_label(self, frame: Frame) -> None:
        if not frame.tensor.shape or frame.tensor.shape[0] != self._samples:
            raise ProtocolError(
                f"step {frame.step}: labels {tuple(frame.tensor.shape)} came for {self._samples} samples"
            )
        check_announcement(frame, codec_by_name("raw"), self._max_bytes)


def check_epoch(frame: Frame, deployment: Deployment) -> None:
    """Refuse what was made under another deployment than the one in force."""
    if frame.deployment_epoch != deployment.epoch:
        raise Refusal(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"a frame of deployment {frame.deployment_epoch} came; deployment {deployment.epoch} is in force",
        )
