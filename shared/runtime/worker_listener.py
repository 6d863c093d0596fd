"""The events of a worker's steps, told as they happen to the keepers of its figures."""

from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.link_pb2 import StepDone


class WorkerListener:
    """Ignores every event; a listener overrides the methods for those that it needs.

    Everything is called on the event loop, so it must be quick, and must not raise. Times are time.monotonic, in seconds.
    Arguments are passed by position, so an override may name those that it does not use with an underscore.
    """

    def computed(self, step: int, what: str, start_seconds: float, end_seconds: float, /) -> None:
        """This worker has computed a segment of a step: `what` names the work, as "forward" or "backward, update"."""

    def encoded(self, peer: str, step: int, start_seconds: float, end_seconds: float, /) -> None:
        """A load for a peer has been encoded."""

    def sent(self, peer: str, payload_bytes: int, raw_bytes: int, /) -> None:
        """A tensor was handed to the link. raw_bytes: its size before its codec."""

    def received(self, peer: str, tensor: WireTensor, raw_bytes: int, /) -> None:
        """A tensor has come from the link. raw_bytes: its size after its codec."""

    def step_ended(self, step: int, staleness: int, /) -> None:
        """This worker has done all of a step. staleness: how many steps had begun here since that one."""

    def step_done(self, done: StepDone, /) -> None:
        """A worker has done all of a step, this one or one whose reports come by here."""

    def peer_stops(self, worker: str, /) -> None:
        """A worker whose reports come by here is about to stop."""
