"""What the pipeline stands between: the link, who watches it, and how far it has come."""

from dataclasses import dataclass
from typing import Protocol

from shared.client.training_call import Stream
from shared.errors import IsthmusError
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.trainer_pb2 import Attached, StepReport


@dataclass(slots=True)
class Position:
    """How far the edge has come, between two runs the same step three times."""

    gradient: int
    """The step of the gradient that comes next."""
    report: int
    """The step of the report that comes next."""
    forward: int
    """The batch that is forwarded next."""


class Link(Protocol):
    """The stream of a session, however often it is lost."""

    @property
    def stream(self) -> Stream:
        """The stream that is attached. Raises UnreachableError when none is."""

    async def resume(self, failure: IsthmusError, position: Position) -> Attached:
        """Attach again after `failure`, and go on from `position`.

        Raises `failure`, or what attaching fails with, when the link cannot be had again, and WentBack (`connection`).
        """


class Observer(Protocol):
    """Who wants to know what the pipeline does; called on the event loop, so it must be quick. Times are time.monotonic."""

    def span(self, phase: str, what: str, step: int, start_seconds: float, end_seconds: float) -> None:
        """One phase worked on one step, as `what` says."""

    def edge_computed(self, step: int, seconds: float) -> None:
        """T1 of a step: its forward, and its backward with update."""

    def gradient_applied(self, step: int, staleness: int) -> None:
        """The gradient of a step was applied so many steps late."""

    def uploaded(self, payload_bytes: int, raw_bytes: int) -> None:
        """A tensor was handed to the link; raw_bytes: before its codec."""

    def downloaded(self, tensor: WireTensor, raw_bytes: int) -> None:
        """A tensor has come from the link."""

    def reported(self, report: StepReport, samples: int) -> None:
        """The cloud has done its part of a step."""
