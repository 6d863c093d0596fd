"""Loads to the form of the wire and back, each on the thread of the codecs or at once, whichever takes less time."""

from shared.codec import Encoded
from shared.concurrency.threads import Runner
from shared.execution.feedback import Feedback, errors_of
from shared.execution.step_in_flight import EncodedSlots, Load, Parcel, tensors_in
from shared.placement import Cargo
from shared.runtime.forms import Form


class LoadCoder:
    """The coding of all that comes to one worker and leaves it. Made on any thread, and used on the event loop."""

    def __init__(self, feedback: Feedback, codecs: Runner, staleness: int) -> None:
        """codecs: the thread that encodes and decodes. staleness: K of the placement."""
        self._feedback = feedback
        self._codecs = codecs
        self._staleness = staleness

    async def encode(self, item: Parcel, form: Form) -> EncodedSlots:
        """Return the tensors of an item by slot."""
        tensors = tensors_in(item.load)
        if any(tensor.is_cuda for tensor in tensors):
            return await self._codecs.run(self._encode, item, form)
        at_once = sum(tensor.nbytes for tensor in tensors) <= form.quick_bytes
        if not form.is_lossless:
            return self._encode(item, form) if at_once else await self._codecs.run(self._encode, item, form)
        if item.crossing.cargo is Cargo.FEATURE and self._staleness:
            # It is kept while other steps are computed. In the middle of where their activations were, it would keep that
            # memory from being used again as a whole.
            item.load = _copied(item.load) if at_once else await self._codecs.run(_copied, item.load)
        return form.encode(item.load)

    async def decode(self, form: Form, step: int, samples: int, slots: EncodedSlots) -> Load:
        """Return the load of these slots. It may have to come again, until `note_taken`.

        Raises ProtocolError for bytes that no peer could have encoded.
        """
        crossing = form.crossing
        takes_time = crossing.cargo is Cargo.ERROR_GRADIENT and self._feedback.is_due(step, crossing)
        if not takes_time and form.is_lossless:
            return form.decode(slots)
        if sum(map(raw_bytes, slots.values())) <= form.quick_bytes:
            return self._decode(form, step, samples, slots)
        return await self._codecs.run(self._decode, form, step, samples, slots)

    def note_taken(self, step: int, form: Form) -> None:
        """The load of a crossing has come for good."""
        if form.crossing.cargo is Cargo.ERROR_GRADIENT:
            self._feedback.forget(step, form.crossing)

    def _encode(self, item: Parcel, form: Form) -> EncodedSlots:
        if item.encoded is not None:  # by a call that nobody waits for any more, because its stream was lost
            return item.encoded
        item.encoded = encoded = form.encode(item.load)
        if self._feedback.wants(item.crossing):
            received = form.decode(encoded)
            assert isinstance(received, tuple)
            assert isinstance(item.load, tuple)
            self._feedback.note(item.step, item.crossing, errors_of(received, item.load), item.scale)
        return encoded

    def _decode(self, form: Form, step: int, samples: int, slots: EncodedSlots) -> Load:
        load = form.decode(slots)
        if form.crossing.cargo is Cargo.ERROR_GRADIENT:
            assert isinstance(load, tuple)
            return self._feedback.compensated(step, form.crossing, load, samples)
        return load


def raw_bytes(encoded: Encoded | None) -> int:
    """Return the size of a tensor once decoded; 0 where there is none."""
    return 0 if encoded is None else encoded.raw_bytes


def _copied(load: Load) -> Load:
    assert isinstance(load, tuple)
    return tuple(None if tensor is None else tensor.clone() for tensor in load)
