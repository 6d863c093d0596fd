"""One worker's end of a link: its sends to another worker of the session, and its arrivals from there.

Streams come and go. Tensors that the peer lacks of the last one are sent again on the next. Every arrival is judged by
the placement before memory is taken for it, and delivered to the steps of this worker once it is whole.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

from shared.errors import OutOfTurnError, ProtocolError, UnreachableError
from shared.events import Emit
from shared.events.worker import Delivered, LoadEncoded, Received, Sent
from shared.execution.step_in_flight import Parcel
from shared.placement import ArrivalJudge, Cargo, Crossing, Program, Receive, Send
from shared.runtime.channel import Channel
from shared.runtime.load_queue import LoadQueue
from shared.runtime.outbox import Outbox
from shared.runtime.reports import ReportRelay
from shared.tensor_wire import to_wire
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import TensorKey, WireTensor
from shared.transport.stream.link_estimate import LinkEstimate
from shared.wire.isthmus.v1.link_pb2 import Awaited, LinkMessage, LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import Frame

POSITION_SECONDS = 30.0
"""Longest wait for the position of the other end: it says that at once, and nothing is under way by which its silence shows."""
LinkStream = Duplex[LinkMessage, LinkMessage]


class LinkEnd:
    """This worker's end of the link to another one: what it sends again after a loss, and what may come.

    Made on any thread, and used on the event loop.
    """

    def __init__(
        self,
        peer: str,
        leaving: Sequence[Channel],
        coming: Sequence[Channel],
        judge: ArrivalJudge,
        loads: LoadQueue,
        relay: ReportRelay,
        emit: Emit,
    ) -> None:
        """leaving, coming: all channels of this link; their loads come to `loads`. relay: gets the arriving reports.

        judge: of the arrivals at this worker, with nothing under way.
        """
        self.peer = peer
        self._window = window = judge.window
        self._judge = judge
        self._loads = loads
        self._relay = relay
        self._emit = emit
        plan, worker = window.plan, window.worker
        self._version = plan.placement.version
        most_repeated = plan.most_under_way + plan.runs_ahead
        most_ahead = most_repeated if window.life else 0
        own = _own_feature(plan.program(worker), peer)
        labelled = next((channel for channel in leaving if channel.crossing == own), None)
        merged = plan.model.merged and plan.placement.exchange is None
        self._outbox = Outbox(leaving, labelled, most_ahead, plan.placement.exchange, merged=merged)
        self._makes_again = window.life > 0
        self._kept_steps = most_repeated if peer in plan.stateless else 0
        """Steps that the peer has done and for which it may need everything again."""
        self._most_kept = self._kept_steps or plan.most_under_way
        """Steps before the one that comes of which the peer may still need something."""
        self._leaving = leaving
        self._coming = coming
        self._places = {
            (channel.form.role, channel.crossing.index, slot): channel
            for channel in coming
            for slot in channel.form.slots
        }
        """The channels of all that comes by this link, by role, block and slot."""
        self.reports = relay.queues[peer]
        """The reports on their way to the peer."""
        self._more_to_send = self.reports.due
        self._dones_received = 0
        self._peer_life = 0
        """As in `LinkPosition`, of the peer."""
        self.times_lost = 0
        """Number of times that the link was lost and has come back."""
        self._is_lost = False
        self._stream: LinkStream | None = None
        self._is_ending = False
        self._peer_has_ended = False
        """True once the peer has ended the current stream."""

    @property
    def estimate(self) -> LinkEstimate | None:
        """Return what the last stream has shown of the way to the peer; None before the first."""
        return None if self._stream is None else self._stream.estimate

    @property
    def waiting(self) -> int:
        """Number of items for the peer that are not on their way."""
        return self._outbox.waiting

    @property
    def carried_bytes(self) -> int:
        """Count the bytes that the last stream has carried, as its two ends agree."""
        return 0 if self._stream is None else self._stream.carried_bytes

    def lacks(self, step: int) -> bool:
        """Tell whether anything of a step has still to come from the peer."""
        return any(channel.next_step <= step for channel in self._coming)

    def keep_first(self, channel: Channel, parcel: Parcel) -> None:
        """Keep the weights with which a placement has come into force, which the peer needs if it loses all."""
        self._outbox.keep_first(channel, parcel)

    def send(self, channel: Channel, parcel: Parcel) -> None:
        """Something has to go to the peer, by a channel of this link."""
        if channel.form.tells_length and isinstance(parcel.load, tuple):
            for slot, tensor in enumerate(parcel.load):
                if tensor is not None and (length := channel.form.length(slot, tensor.shape)) is not None:
                    self._judge.note_length(parcel.step, length)
        self._outbox.put(channel, parcel)
        self._more_to_send.set()

    @property
    def position(self) -> LinkPosition:
        """The position of this end, for the first message of a stream."""
        return LinkPosition(
            placement_version=self._version,
            awaited=[
                Awaited(role=key.role, block=key.block, slot=key.slot, next_step=key.step)
                for channel in self._coming
                for key in [channel.form.first_key(channel.next_step)]
            ],
            dones_received=self._dones_received,
            life=self._window.life,
        )

    def resume(self, peer: LinkPosition) -> None:
        """A stream begins, whose other end has this. Raises ProtocolError for a position that cannot be.

        One that does not fit the steps here is out of turn: one of both workers has begun anew since.
        """
        if peer.placement_version != self._version:
            raise OutOfTurnError(
                f"worker {self.peer!r} holds placement {peer.placement_version}; {self._version} is in force"
            )
        is_new = peer.life != self._peer_life
        if is_new and self.peer not in self._window.plan.stateless:
            raise ProtocolError(
                f"worker {self.peer!r} says that it has begun again, which it cannot under this placement"
            )
        leaving = {channel.form.first_key(0)[1:]: channel for channel in self._leaving}
        # Counted first: a message has room for a hundred times as many as any placement has.
        is_as_many = len(peer.awaited) == len(leaving)
        awaited = {(one.role, one.block, one.slot): one.next_step for one in peer.awaited} if is_as_many else {}
        is_known = is_as_many and awaited.keys() == leaving.keys()
        if not is_known or not self.reports.covers(peer.dones_received, is_new=is_new):
            raise OutOfTurnError(f"worker {self.peer!r} waits for something else than comes to it under this placement")
        self._outbox.resume([(leaving[key], step - leaving[key].form.early) for key, step in awaited.items()])
        # From here on nothing of it is refused.
        self._peer_life = peer.life
        self.reports.resume(peer.dones_received, is_new=is_new)
        self._peer_has_ended = False
        for channel in self._coming:
            channel.begin_again()
        self._more_to_send.set()

    def keep(self) -> None:
        """Have streams go on until `end`, also after an `end` before."""
        self._is_ending = False

    def end(self) -> None:
        """Send the rest, and then end the stream. The worker that dialled ends a link, with nothing under way."""
        self._is_ending = True
        self.reports.hurry()
        self._more_to_send.set()

    async def run(self, stream: LinkStream, end_writing: Callable[[], Awaitable[None]] | None = None) -> None:
        """Exchange positions, and then tensors, until the stream is ended. Raises the IsthmusError that ends it early.

        end_writing: tells the peer that no more comes, after `end`; None on the dialled side.
        """
        # At once: the reason of a refused stream is heard by reading alone, also after a write that failed for it.
        try:
            async with asyncio.timeout(POSITION_SECONDS):
                _, first = await asyncio.gather(stream.write(LinkMessage(position=self.position)), stream.receive())
        except TimeoutError:
            raise UnreachableError(
                f"worker {self.peer!r} has a link to here and has not said in {POSITION_SECONDS:.0f} seconds where it stands"
            ) from None
        if first is None or first[1] or first[0] != LinkMessage(position=first[0].position):
            raise ProtocolError(f"the link to {self.peer!r} began with something else than a position")
        self.resume(first[0].position)
        self.times_lost += self._is_lost
        self._is_lost = False
        self._stream = stream
        sending = asyncio.create_task(self._send_all(stream))
        receiving = asyncio.create_task(self._receive_all(stream))
        try:
            done, _ = await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if end_writing is not None and sending in done:
                await end_writing()
                await receiving  # it must not be cancelled while it reads, which would end the stream as a failure
            elif end_writing is None and receiving in done:
                # A write under way is finished: gRPC cannot end a call of which a write was cancelled.
                self._peer_has_ended = True
                self.reports.hurry()
                self._more_to_send.set()
                await asyncio.wait({sending})
        except BaseException:
            self._is_lost = True
            raise
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    def let_go(self) -> None:
        """Drop the last stream, which holds this end. `run` is not called again."""
        self._stream = None

    def accept(self, frame: Frame, key: TensorKey) -> None:
        """Agree to a tensor that the peer announces, before memory is taken for it; the assembler of every stream asks this.

        Raises ProtocolError, and the error of a loss that refuses labels.
        """
        if (channel := self._places.get(key[1:])) is None:
            raise ProtocolError(f"{key} came from {self.peer!r}, who has none to send under this placement")
        step = channel.accept(frame, key)
        # A peer at this step has long had the tensors of the workers that are furthest behind.
        self._outbox.forget_before(step - channel.ahead + 1 - self._most_kept)

    def note_delivered(self, tensor: WireTensor, seconds: float, receiver_nanoseconds: int) -> None:
        """Tell that the peer has acknowledged a tensor; every stream calls this. See `Delivered`."""
        self._emit(Delivered(self.peer, tensor, seconds, receiver_nanoseconds))

    async def _send_all(self, stream: LinkStream) -> None:
        """Until `end`, or until the peer has ended the stream and nothing waits."""
        while True:
            if parcels := self._outbox.next(self._window.begun):
                await self._send(stream, parcels)
            elif self.reports.are_due:
                await stream.write(self.reports.take())
            elif self._is_ending or self._peer_has_ended:
                return
            else:
                self._more_to_send.clear()
                await self._more_to_send.wait()

    async def _send(self, stream: LinkStream, parcels: tuple[tuple[Channel, Parcel], ...]) -> None:
        tensors: list[WireTensor] = []
        payload_bytes = raw_bytes = 0
        for channel, parcel in parcels:
            form, step = channel.form, parcel.step
            if parcel.encoded is None:
                started = time.monotonic()
                await channel.encode(parcel)
                assert parcel.encoded is not None, "it is encoded"
                self._emit(LoadEncoded(step, started, time.monotonic()))
            if self._makes_again and step < channel.there:
                continue  # Encoded all the same, because its error gradient may have to be corrected.
            for slot, encoded in parcel.encoded.items():
                told = parcel.samples, parcel.rate_drops, parcel.label_count
                tensors.append(to_wire(encoded, form.key(step, slot), form.version, *told))
                if encoded is not None:
                    payload_bytes += len(encoded.payload)
                    raw_bytes += encoded.raw_bytes
        if tensors:
            self._emit(Sent(self.peer, payload_bytes, raw_bytes))
            await stream.send(*tensors, message=self.reports.take())
        for channel, parcel in parcels:
            self._outbox.note_sent(channel, parcel.step)

    async def _receive_all(self, stream: LinkStream) -> None:
        while (event := await stream.receive()) is not None:
            message, tensors = event
            for done in message.dones:
                self._relay.hear(done, self.peer)
                self._dones_received += 1
                if done.worker == self.peer:
                    self._outbox.forget_before(done.step + 1 - self._kept_steps)
            if message.HasField("stopping"):
                self._relay.hear_stopping(message.stopping.worker, self.peer)
            message.ClearField("dones")
            message.ClearField("stopping")
            if message.ByteSize():
                raise ProtocolError(
                    f"a message came from {self.peer!r} that is neither a frame, an ack, a step that is done nor a stop"
                )
            for tensor in tensors:
                channel = self._places[tensor.key[1:]]
                parcel, raw_bytes, is_whole = channel.add(tensor)
                self._emit(Received(self.peer, tensor, raw_bytes))
                if is_whole:
                    load = await channel.decode(parcel)
                    # From here on without a pause: a lost stream has brought this or has not.
                    channel.end(parcel, load)
                    self._loads.put(parcel)


def _own_feature(operations: Program, peer: str) -> Crossing | None:
    """Return the feature that a peer gets of this worker's own samples, before this worker has waited for any other."""
    for one in itertools.takewhile(lambda one: not isinstance(one, Receive), operations):
        if isinstance(one, Send) and one.crossing.receiver == peer and one.crossing.cargo is Cargo.FEATURE:
            return one.crossing
    return None
