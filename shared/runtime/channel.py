"""A channel: one crossing at one of its ends, with all that belongs to it on a link.

It codes loads, keeps what may have to be sent again, and judges what is announced. `Outbox` chooses the channel that sends
next, and `LinkEnd` moves the tensors.
"""

import math

from torch import Tensor

from shared.bounds import MOST_RATE_DROPS
from shared.concurrency.threads import Runner
from shared.errors import ProtocolError
from shared.execution.feedback import Errors, Feedback
from shared.execution.step_in_flight import EncodedSlots, Load, Parcel, tensors_in
from shared.placement import ArrivalJudge, Cargo
from shared.runtime.announcements import check_announcement
from shared.runtime.form import Form
from shared.tensor_wire import from_wire
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.wire.isthmus.v1.tensor_pb2 import Frame, TensorHeader


class Channel:
    """A crossing that begins or ends at this worker: its loads step by step. Made on any thread, and used on the event loop."""

    def __init__(self, form: Form, judge: ArrivalJudge, codecs: Runner, feedback: Feedback, place: int = 0) -> None:
        """judge: of this worker, with nothing under way. codecs: the thread that encodes and decodes. feedback: of this link.

        place: among all that leaves by its link, or among all that comes to this worker in a step.
        """
        self.form = form
        self.crossing = crossing = form.crossing
        self.place = place
        self._judge = judge
        self._codecs = codecs
        window, cargo = judge.window, crossing.cargo
        plan, leaves = window.plan, crossing.sender == window.worker
        loses = leaves and not form.is_lossless and feedback.wants(crossing)
        self._feedback = feedback if loses or (not leaves and cargo is Cargo.ERROR_GRADIENT) else None
        self._is_kept_long = cargo is Cargo.FEATURE and plan.placement.staleness > 0
        self.ahead = plan.ahead_of(crossing)
        """Number of steps that a load may come before K lets its step begin."""
        self.next_step = window.first if leaves else window.first_of(crossing)
        """Step that is made next here, or that is whole next."""
        self.stream_step = self.next_step
        """First step that the stream has not carried: that is not sent, or not announced."""
        self.there = self.next_step
        """First step that the peer lacks, where this worker makes again what it may have."""
        self.parcels: dict[int, Parcel] = {}
        """By step, in their order: those that may have to be sent again, or of which some tensors have come."""
        self.first: Parcel | None = None
        """The first parcel that waits to be sent, as the outbox has seen it."""
        self.urgency: tuple[int, int, int] | None = None
        """Urgency of that parcel; see `urgency`."""
        self._announced = 0
        """Number of slots that are announced of the first step that is not announced as a whole."""
        self._samples = 0
        """Samples of that step's batch."""
        self._agreed: dict[int, tuple[int, TensorHeader]] = {}
        """Samples and announcement that were agreed to last, by slot."""

    # What leaves.

    @property
    def waiting(self) -> int:
        """Count the parcels that are not sent."""
        return max(self.next_step - self.stream_step, 0)

    def keep(self, parcel: Parcel) -> None:
        """Keep a parcel of a step that is later than all kept ones."""
        self.parcels[parcel.step] = parcel
        self.next_step = parcel.step + 1

    def first_waiting(self) -> Parcel | None:
        """Return the oldest parcel that is not sent; None if all are."""
        if (parcel := self.parcels.get(self.stream_step)) is not None:
            return parcel
        return next((parcel for step, parcel in self.parcels.items() if step >= self.stream_step), None)

    def forget_before(self, before: int) -> None:
        """Forget the parcels of every step before this one, because the peer has them."""
        while self.parcels and (oldest := next(iter(self.parcels))) < before:
            del self.parcels[oldest]

    def covers(self, first: int) -> bool:
        """Tell whether all parcels from this step on are here, so that a peer that waits for it can be brought to the end.

        Return False for a step that is beyond the next one.
        """
        lacking = self.next_step - first
        return 0 <= lacking <= len(self.parcels) and all(step in self.parcels for step in range(first, self.next_step))

    async def encode(self, parcel: Parcel) -> None:
        """Encode a parcel, on the thread of the codecs or at once, whichever takes less time. Its load goes."""
        form, size, is_near = self.form, 0, True
        for tensor in tensors_in(parcel.load):
            size += tensor.nbytes
            is_near = is_near and not tensor.is_cuda
        at_once = is_near and size <= form.quick_bytes
        if form.is_lossless and is_near and self._is_kept_long:
            # It is kept while other steps are computed. In the middle of where their activations were, it would keep that
            # memory from being used again as a whole.
            parcel.load = _copied(parcel.load) if at_once else await self._codecs.run(_copied, parcel.load)
        if at_once or (form.is_lossless and is_near):
            self._encode(parcel)
        else:
            await self._codecs.run(self._encode, parcel)

    def _encode(self, parcel: Parcel) -> None:
        """Encode a parcel, unless a call has that nobody waits for any more, because its stream was lost."""
        if parcel.encoded is not None:
            return
        form = self.form
        encoded = form.encode(parcel.load, parcel.numbers)
        if self._feedback is not None or form.keep is not None:
            received = form.decode(encoded)
            assert isinstance(received, tuple)
            assert isinstance(parcel.load, tuple)
            if self._feedback is not None:
                self._feedback.note(parcel.step, self.crossing, received, parcel.load, parcel.scale)
            if form.keep is not None:
                form.keep(encoded, received)
        parcel.encoded, parcel.load = encoded, ()

    # What comes.

    def accept(self, frame: Frame, key: TensorKey) -> int:
        """Agree to a tensor that the peer announces, before memory is taken for it. Returns its step.

        Raises ProtocolError, and the error of a loss that refuses labels; then nothing is counted.
        """
        form, samples, count = self.form, frame.batch_samples, self._announced
        step = self.stream_step if count else key.step - form.early
        if count and samples != self._samples:
            raise ProtocolError(f"{key} came for a batch of {samples} samples; its batch has {self._samples}")
        slot = form.slots[count]
        looks = samples, frame.tensor
        is_next = key.slot == slot and key.step == step + form.early and frame.placement_version == form.version
        if not is_next or self._agreed.get(slot) != looks:  # at once if it looks as the one before it
            check_announcement(frame, form.expected(step, slot, samples))
            self._agreed[slot] = looks
        if not 0 <= frame.label_count < math.inf:
            raise ProtocolError(f"{key} tells that labels count {frame.label_count}, which is no number of them")
        if frame.rate_drops > MOST_RATE_DROPS:
            raise ProtocolError(f"{key} tells that the rate fell {frame.rate_drops} times; {MOST_RATE_DROPS} is most")
        if not count:
            if step != self.stream_step:
                raise ProtocolError(
                    f"{self.crossing.cargo} {self.crossing.index} of step {step} came from {self.crossing.sender!r}; step "
                    f"{self.stream_step} is next"
                )
            self._judge.accept(self.crossing, step, samples, self.ahead)
        if form.tells_length and (length := form.length(slot, frame.tensor.shape)) is not None:
            self._judge.accept_length(self.crossing.sender, step, length)
        self._samples = samples
        if count + 1 < len(form.slots):
            self._announced = count + 1
        else:
            self._announced, self.stream_step = 0, step + 1
        return step

    def add(self, tensor: WireTensor) -> tuple[Parcel, int, bool]:
        """Add a tensor that has come. Returns its parcel, the tensor's bytes once decoded, and whether no other is missing."""
        step, encoded = tensor.key.step - self.form.early, from_wire(tensor)
        if (parcel := self.parcels.get(step)) is None:
            parcel = self.parcels[step] = Parcel(
                step,
                tensor.batch_samples,
                self.crossing,
                (),
                self.place,
                encoded={},
                rate_drops=tensor.rate_drops,
                label_count=tensor.label_count,
            )
        assert parcel.encoded is not None, "it is not decoded before it is whole"
        parcel.encoded[tensor.key.slot] = encoded
        raw_bytes = 0 if encoded is None else encoded.raw_bytes
        parcel.raw_bytes += raw_bytes
        return parcel, raw_bytes, len(parcel.encoded) == len(self.form.slots)

    async def decode(self, parcel: Parcel) -> Load:
        """Return the load of a parcel that is whole, decoded as `encode` says. It may have to come again, until `end`.

        Raises ProtocolError for bytes that no peer could have encoded.
        """
        assert parcel.encoded is not None, "it is decoded once"
        errors = None if self._feedback is None else self._feedback.errors(parcel.step, self.crossing)
        if errors is None and self.form.is_lossless:
            return self.form.decode(parcel.encoded)
        if parcel.raw_bytes <= self.form.quick_bytes:
            return self._decode(parcel.encoded, errors, parcel.samples)
        return await self._codecs.run(self._decode, parcel.encoded, errors, parcel.samples)

    def _decode(self, encoded: EncodedSlots, errors: Errors | None, samples: int) -> Load:
        load = self.form.decode(encoded)
        if errors is None or self._feedback is None:
            return load
        assert isinstance(load, tuple)
        return self._feedback.compensated(load, errors, samples)

    def end(self, parcel: Parcel, load: Load) -> None:
        """Count the step of a parcel as whole: its load has come for good."""
        del self.parcels[parcel.step]
        if self.form.keep is not None:
            assert parcel.encoded is not None, "it is whole"
            self.form.keep(parcel.encoded, load)
        parcel.load, parcel.encoded = load, None
        self.next_step = parcel.step + 1
        if self._feedback is not None:
            self._feedback.forget(parcel.step, self.crossing)

    def begin_again(self) -> None:
        """Forget what a lost stream has brought of steps that are not whole: it comes again."""
        self.stream_step, self._announced = self.next_step, 0
        self.parcels.clear()


def _copied(load: Load) -> tuple[Tensor | None, ...]:
    assert isinstance(load, tuple)
    return tuple(None if tensor is None else tensor.clone() for tensor in load)
