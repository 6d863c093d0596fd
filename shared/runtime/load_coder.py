"""Loads to the form of the wire and back, each on the thread of the codecs or at once, whichever takes less time."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from shared.codec import Encoded
from shared.concurrency.threads import Runner
from shared.execution.feedback import Feedback, errors_of
from shared.execution.step_in_flight import Load, tensors_in
from shared.placement import Cargo, Crossing
from shared.runtime.crossing_wire import CrossingWire, EncodedSlots
from shared.runtime.outbox import KeptLoad

T = TypeVar("T")


class LoadCoder:
    """The coding of all that comes to one worker and leaves it. Made on any thread, and used on the event loop."""

    def __init__(self, wire: CrossingWire, crossings: list[Crossing], feedback: Feedback, codecs: Runner) -> None:
        """crossings: those of this worker. codecs: the thread that encodes and decodes."""
        self.wire = wire
        self._feedback = feedback
        self._codecs = codecs
        self._lossless = {crossing for crossing in crossings if wire.is_lossless(crossing)}
        self._quick_bytes = {crossing: wire.quick_bytes(crossing) for crossing in crossings}

    async def encode(self, item: KeptLoad) -> EncodedSlots:
        """Return the tensors of an item by slot."""
        tensors = tensors_in(item.load)
        if any(tensor.is_cuda for tensor in tensors):
            return await self._codecs.run(self._encode, item)
        count = sum(tensor.nbytes for tensor in tensors)
        at_once = count <= self._quick_bytes[item.crossing]
        if item.crossing not in self._lossless:
            return await self._called(partial(self._encode, item), at_once=at_once)
        if item.crossing.cargo is Cargo.FEATURE and self.wire.placement.staleness:
            # It is kept while other steps are computed. In the middle of where their activations were, it would keep that
            # memory from being used again as a whole.
            item.load = await self._called(partial(_copied, item.load), at_once=at_once)
        return self.wire.encode(item.crossing, item.load)

    async def decode(self, crossing: Crossing, step: int, samples: int, slots: EncodedSlots) -> Load:
        """Return the load of these slots. It may have to come again, until `note_taken`.

        Raises ProtocolError for bytes that no peer could have encoded.
        """
        takes_time = self._feedback.is_due(step, crossing) if crossing.cargo is Cargo.ERROR_GRADIENT else False
        if not takes_time and crossing in self._lossless:
            return self.wire.decode(crossing, slots)
        at_once = sum(map(raw_bytes, slots.values())) <= self._quick_bytes[crossing]
        return await self._called(partial(self._decode, crossing, step, samples, slots), at_once=at_once)

    def note_taken(self, step: int, crossing: Crossing) -> None:
        """The load of a crossing has come for good."""
        if crossing.cargo is Cargo.ERROR_GRADIENT:
            self._feedback.forget(step, crossing)

    async def _called(self, function: Callable[[], T], *, at_once: bool) -> T:
        """Call a function on the thread of the codecs, or here, and return its result."""
        return function() if at_once else await self._codecs.run(function)

    def _encode(self, item: KeptLoad) -> EncodedSlots:
        if item.encoded is not None:  # by a call that nobody waits for any more, because its stream was lost
            return item.encoded
        item.encoded = encoded = self.wire.encode(item.crossing, item.load)
        if self._feedback.wants(item.crossing):
            received = self.wire.decode(item.crossing, encoded)
            assert isinstance(received, tuple)
            assert isinstance(item.load, tuple)
            self._feedback.note(item.step, item.crossing, errors_of(received, item.load), item.scale)
        return encoded

    def _decode(self, crossing: Crossing, step: int, samples: int, slots: EncodedSlots) -> Load:
        load = self.wire.decode(crossing, slots)
        if crossing.cargo is Cargo.ERROR_GRADIENT:
            assert isinstance(load, tuple)
            return self._feedback.compensated(step, crossing, load, samples)
        return load


def raw_bytes(encoded: Encoded | None) -> int:
    """Return the size of a tensor once decoded; 0 where there is none."""
    return 0 if encoded is None else encoded.raw_bytes


def _copied(load: Load) -> Load:
    assert isinstance(load, tuple)
    return tuple(None if tensor is None else tensor.clone() for tensor in load)
