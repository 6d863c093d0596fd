"""The events of one worker's steps and links."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.events.dispatcher import Event
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import StepDone

if TYPE_CHECKING:
    from shared.training.losses import BatchLoss


@dataclass(frozen=True, slots=True)
class Computed(Event):
    """This worker has computed a segment of a step."""

    step: int
    segment: int
    """Segment of its program."""
    what: str
    """Name of the work, as "forward" or "backward, update"."""
    start_seconds: float
    end_seconds: float
    loss: "BatchLoss | None" = None
    """Loss of this worker's part, once it is computed. What the segment sends has not left."""


@dataclass(frozen=True, slots=True)
class LoadEncoded(Event):
    """A load of a step has been encoded for another worker."""

    step: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """The tensors of a message are about to be sent."""

    peer: str
    payload_bytes: int
    raw_bytes: int
    """Their size before their codecs."""


@dataclass(frozen=True, slots=True)
class Delivered(Event):
    """A peer has acknowledged a tensor."""

    peer: str
    tensor: WireTensor
    seconds: float
    """From its first byte to the acknowledgement."""
    receiver_nanoseconds: int
    """Its arrival, by the peer's clock."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A tensor has come from the link."""

    peer: str
    tensor: WireTensor
    raw_bytes: int
    """Its size after its codec."""


@dataclass(frozen=True, slots=True)
class StepComputed(Event):
    """This worker has done all of a step."""

    step: int
    compute_seconds: float
    """Seconds of all its segments together."""
    staleness: int | None
    """Number of steps that had begun here since this one; None where the worker applies no error gradient."""


@dataclass(frozen=True, slots=True)
class WorkerDone(Event):
    """A worker has done all of a step: this one, or one whose reports come by here."""

    report: StepDone


@dataclass(frozen=True, slots=True)
class WorkerRepeated(Event):
    """A worker that has begun again has done a step once more."""

    worker: str
    step: int


@dataclass(frozen=True, slots=True)
class WorkerStops(Event):
    """A worker whose reports come by here is about to stop."""

    worker: str
