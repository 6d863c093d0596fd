"""The operator's limits for one session."""

from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.model.budget import BuildLimits
from shared.transport.rpc.status import StatusError

_OF_METRICS = 16
"""Part of a session's memory that metrics may take: a sixteenth."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one tensor, of K, and of one session's model and memory (cloud_trainer.config, section server)."""

    tensor_bytes: int
    staleness: int
    session_bytes: int
    session_modules: int = 10_000
    build_seconds: float = 60.0
    accept_inputs: bool = False
    """True if raw samples may be sent to this trainer."""
    recalled_bytes: int = 16 * 1024**3

    @property
    def of_a_build(self) -> BuildLimits:
        """Return the limits of building one session's model."""
        return BuildLimits(self.session_bytes, self.session_modules, self.build_seconds)

    @property
    def metric_bytes(self) -> int:
        """Return the most that the metrics of an evaluation may keep."""
        return min(self.tensor_bytes, self.session_bytes // _OF_METRICS)

    def check_memory(self, count: int) -> None:
        """Refuse a session that would take `count` bytes, if that is too many. Raises StatusError."""
        if count > self.session_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the session would take about {count} bytes of memory, for weights, gradients, optimizer state, "
                "activations, batches in flight, evaluations and blocks on their way; this trainer gives "
                f"{self.session_bytes} to one (server.max_session_bytes)",
            )

    def check_recalled(self, key: str, samples: int, each_bytes: int) -> None:
        """Refuse a session that would keep the features of so many samples, if they are too large. Raises StatusError.

        key: of the section deployment, that asks for it.
        """
        if (count := samples * each_bytes) > self.recalled_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the session would keep {count} bytes of features and labels, {each_bytes} of each of {samples} samples "
                f"(deployment.{key}); this trainer gives {self.recalled_bytes} to one (server.max_recalled_bytes)",
            )

    def check_uses(self, training: int, evaluating: int) -> None:
        """Refuse a session that would take too many bytes in training, or in an evaluation. Raises StatusError."""
        if max(training, evaluating) > self.session_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the session would take about {training} bytes of memory to train and {evaluating} to evaluate, for weights, "
                "gradients, optimizer state, activations, batches in flight and blocks on their way; this trainer gives "
                f"{self.session_bytes} to one (server.max_session_bytes); smaller batches (data.batch_size) take less",
            )

    def check_staleness(self, staleness: int, codecs: Iterable[str]) -> None:
        """Refuse a K beyond the limit. Raises ProtocolError, and ConfigError for an unknown codec."""
        if staleness > self.staleness:
            raise ProtocolError(
                f"a staleness of {staleness} is more than this trainer's limit of {self.staleness} (server.max_staleness)"
            )
        for name in codecs:
            codec_by_name(name)
