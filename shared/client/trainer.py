"""The trainer as the edge sees it: one method for each call, answers judged, failures as our errors.

Knows nothing of models or data.
"""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from shared.checkpoint import CheckpointName
from shared.checkpoint_wire import checkpoint_message
from shared.client.answers import AnswerJudge
from shared.client.config import TrainerAddressConfig
from shared.client.connection import TrainerConnection
from shared.client.credentials import PLAIN, TrainerAccess, ticket_metadata
from shared.client.idle_timeout import MOST_SECONDS_OF_WORK, IdleTimeout
from shared.client.link_call import METHOD, LinkCall, StreamListener
from shared.client.methods import method_path
from shared.client.relay_socket import RelaySocket, relay_call
from shared.codec import aligned_buffer, codec_by_name
from shared.config import LinkConfig
from shared.errors import ProtocolError
from shared.events import Emit, ignore
from shared.tensor_wire import check_encoding
from shared.training.step_seconds import StepSeconds
from shared.transport.stream.framing import Assembler, TensorKey, WireTensor, block_key, chunks
from shared.transport.stream.packets import Packet, deserializer, message_deserializer, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpening
from shared.wire.isthmus.v1.tensor_pb2 import Frame

M = TypeVar("M", bound=Message)


def _accept_any(_count: int) -> None:
    pass


class TrainerClient:
    """The calls to one trainer. Each raises the IsthmusError that it ended with."""

    def __init__(
        self,
        trainer: TrainerAddressConfig,
        link: LinkConfig,
        emit: Emit = ignore,
        access: TrainerAccess = PLAIN,
    ) -> None:
        self._connection = TrainerConnection(trainer, link, emit, access)
        self._link = link
        self._judge = AnswerJudge(trainer.address)
        self._relay_socket: RelaySocket | None = None
        """Way through another trainer; None where this one is dialled itself."""

    @property
    def address(self) -> str:
        """host:port of the trainer."""
        return self._connection.address

    async def __aenter__(self) -> Self:
        """Wait until the trainer answers; see `TrainerConnection.open`."""
        await self._connection.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
        if self._relay_socket is not None:
            await self._relay_socket.close()

    async def go_through(self, other: "TrainerClient | None", run_id: str) -> None:
        """Dial the trainer through another one from now on, which carries the bytes; with None dial it itself.

        See `TrainerService.Relay`. Calls that are under way end with UnreachableError. run_id: for the other trainer's log.
        Raises UnreachableError if this device has no socket for that; then nothing changes.
        """
        relay_socket, path = None, None
        if other is not None:
            relay_socket = RelaySocket(lambda address: relay_call(other._connection, address, run_id), self.address)
            path = await relay_socket.open()
        before, self._relay_socket = self._relay_socket, relay_socket
        self._connection.reroute(path)
        if before is not None:
            await before.close()

    @property
    def unanswered_since(self) -> float | None:
        """See `TrainerConnection.unanswered_since`."""
        return self._connection.unanswered_since

    async def wait_until_connected(self) -> None:
        """See `TrainerConnection.wait_until_connected`."""
        await self._connection.wait_until_connected()

    async def check_serving(self) -> None:
        """See `TrainerConnection.check_serving`."""
        await self._connection.check_serving()

    async def check_answers(self) -> None:
        """See `TrainerConnection.check_answers`."""
        await self._connection.check_answers()

    async def open_session(self, request: pb.OpenSessionRequest) -> pb.OpenSessionResponse:
        """See `TrainerService.OpenSession`."""
        return self._judge.opened(await self._connection.call("OpenSession", request, pb.OpenSessionResponse))

    async def get_session(self, session_id: str) -> pb.GetSessionResponse:
        """See `TrainerService.GetSession`."""
        request = pb.GetSessionRequest(session_id=session_id)
        return self._judge.seen(await self._connection.call("GetSession", request, pb.GetSessionResponse))

    async def measure_stage(
        self, session_id: str, first: int, stop: int, repeats: int, samples: int | None = None
    ) -> list[StepSeconds]:
        """Seconds of each step of blocks [first, stop); see `TrainerService.MeasureStage`."""
        request = pb.MeasureStageRequest(
            session_id=session_id, first=first, stop=stop, repeats=repeats, samples=samples
        )
        answer = await self._connection.call("MeasureStage", request, pb.MeasureStageResponse, repeats=repeats)
        return self._judge.measured_stage(answer, repeats)

    async def check_peers(self, addresses: Sequence[str], run_id: str) -> list[pb.PeerCheck]:
        """Ask the trainer whether it could dial the trainer at each address. See `TrainerService.CheckPeers`."""
        request = pb.CheckPeersRequest(addresses=addresses, run_id=run_id)
        answer = await self._connection.call("CheckPeers", request, pb.CheckPeersResponse)
        return self._judge.peers_checked(answer, len(addresses))

    async def measure_link(self, request: pb.MeasureLinkRequest) -> pb.MeasureLinkResponse:
        """See `TrainerService.MeasureLink`."""
        return self._judge.measured_link(await self._connection.call("MeasureLink", request, pb.MeasureLinkResponse))

    async def probe(self, factory: str) -> pb.ProbeResponse:
        """Ask the trainer what a session with a model of this factory would find. See `TrainerService.Probe`."""
        request = pb.ProbeRequest(protocol_version=PROTOCOL_VERSION, factory=factory)
        return self._judge.probed(await self._connection.call("Probe", request, pb.ProbeResponse))

    async def time_copy(self, request: pb.TrainCopyRequest) -> pb.CopyTiming:
        """Measure the time that training a copy takes; see `TrainerService.TrainCopy`."""
        return self._judge.copy_timed(await self._train_copy(request))

    async def train_copy(self, request: pb.TrainCopyRequest) -> pb.CopyJudged:
        """Judge a copy after its training; see `TrainerService.TrainCopy`."""
        return self._judge.copy_judged(await self._train_copy(request))

    async def _train_copy(self, request: pb.TrainCopyRequest) -> pb.TrainCopyResponse:
        """The last answer. The trainer may take long, though not for ever, and not be silent for long."""
        end: pb.TrainCopyResponse | None = None
        answers = self._answers("TrainCopy", request, pb.TrainCopyResponse, MOST_SECONDS_OF_WORK)
        async with aclosing(answers):
            async for answer in answers:
                end = answer
        if end is None:
            raise ProtocolError("the trainer ended the training of a copy without an answer")
        return end

    async def close_session(self, session_id: str, fence: pb.Fence, *, resumable: bool) -> None:
        """See `TrainerService.CloseSession`."""
        request = pb.CloseSessionRequest(session_id=session_id, fence=fence, resumable=resumable)
        await self._connection.call("CloseSession", request, pb.CloseSessionResponse)

    async def link(
        self, opening: LinkOpening, listener: StreamListener, ticket: str | None = None
    ) -> tuple[LinkCall, str]:
        """Dial a link, and return it with the ticket with which a trainer may dial it once more. See `TrainerService.Link`.

        ticket: a trainer's credential, in the place of an agent's token.
        """
        await self._connection.close_retired()
        method: Any = self._connection.tensors.stream_stream(
            method_path(METHOD), request_serializer=serialize, response_deserializer=deserializer(LinkMessage)
        )
        rpc = method(metadata=self._shown(ticket))
        call = LinkCall(rpc, self._connection, listener, self._link)
        try:
            async with self._connection.idle_timeout(METHOD):
                answer = await self._connection.unless_rerouted(call.begin(LinkMessage(opening=opening)))
                if answer != LinkMessage(opened=answer.opened):
                    raise ProtocolError(f"the trainer at {self.address} did not open the link")
                following = answer.opened.next_ticket
                return call, self._judge.ticket(METHOD, following) if following else following
        except BaseException:
            call.cancel()
            raise

    async def join_session(
        self, session_id: str, session_term: int, others: Sequence[str] = ()
    ) -> pb.JoinSessionResponse:
        """See `TrainerService.JoinSession`. others: the run's sessions at other trainers on one store with this one."""
        request = pb.JoinSessionRequest(
            session_id=session_id,
            session_term=session_term,
            protocol_version=PROTOCOL_VERSION,
            other_sessions=others,
        )
        return self._judge.joined(await self._connection.call("JoinSession", request, pb.JoinSessionResponse))

    async def restore_worker(self, request: pb.RestoreWorkerRequest) -> pb.RestoreWorkerResponse:
        """See `TrainerService.RestoreWorker`."""
        answer = await self._connection.call("RestoreWorker", request, pb.RestoreWorkerResponse)
        return self._judge.restored(answer)

    async def commit_placement(self, request: pb.CommitPlacementRequest) -> pb.CommitPlacementResponse:
        """See `TrainerService.CommitPlacement`."""
        answer = await self._connection.call("CommitPlacement", request, pb.CommitPlacementResponse)
        return self._judge.with_tickets("CommitPlacement", answer)

    async def leave_group(self, request: pb.LeaveGroupRequest) -> None:
        """See `TrainerService.LeaveGroup`."""
        await self._connection.call("LeaveGroup", request, pb.LeaveGroupResponse)

    async def join_group(self, request: pb.JoinGroupRequest) -> None:
        """See `TrainerService.JoinGroup`."""
        await self._connection.call("JoinGroup", request, pb.JoinGroupResponse)

    async def dial_peers(self, request: pb.DialPeersRequest) -> None:
        """See `TrainerService.DialPeers`."""
        await self._connection.call("DialPeers", request, pb.DialPeersResponse)

    async def checkpoint_worker(self, request: pb.CheckpointWorkerRequest) -> AsyncGenerator[bool | None]:
        """See `TrainerService.CheckpointWorker`: gives None once the state is copied, and then whether it was written."""
        answers = self._answers("CheckpointWorker", request, pb.CheckpointWorkerResponse)
        async with aclosing(answers):
            async for answer in answers:
                yield answer.written if answer.HasField("written") else None

    @asynccontextmanager
    async def evaluation(self, request: pb.JoinEvaluationRequest) -> AsyncIterator[pb.JoinEvaluationResponse]:
        """Have the trainer's worker take part in an evaluation while the body runs. See `TrainerService.JoinEvaluation`."""
        answers = self._answers("JoinEvaluation", request, pb.JoinEvaluationResponse)
        async with aclosing(answers):
            async for ready in answers:
                yield self._judge.with_tickets("JoinEvaluation", ready)
                return
            raise ProtocolError(f"the trainer at {self.address} did not take part in the evaluation")

    async def _answers(
        self, name: str, request: Message, answer: type[M], most_seconds: float = math.inf
    ) -> AsyncGenerator[M]:
        """The answers of a call; each has to come in time, and the last before `most_seconds`. Leaving ends the call."""
        method: Any = self._connection.control.unary_stream(
            method_path(name),
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_deserializer(answer),
        )
        call = method(request, metadata=self._connection.metadata())
        try:
            async with self._connection.idle_timeout(name, most_seconds=most_seconds) as idle_timeout:
                while (message := await self._connection.await_answer(call.read())) is not grpc.aio.EOF:
                    idle_timeout.pause()  # the rest of the time is the caller's
                    yield message
                    idle_timeout.renew()
        finally:
            call.cancel()

    async def upload_block(
        self, session_id: str, tensor: WireTensor, fence: pb.Fence, checkpoint: CheckpointName | None = None
    ) -> int:
        """Replace the state of a block at the trainer, or its frozen parameters; returns the digest that they have there.

        checkpoint: have it kept on disk instead, as a replica of that one's block.
        """
        named = None if checkpoint is None else checkpoint_message(checkpoint)
        method: Any = self._connection.tensors.stream_unary(
            method_path("UploadBlock"),
            request_serializer=serialize,
            response_deserializer=message_deserializer(pb.UploadBlockResponse),
        )

        def packets(idle_timeout: IdleTimeout) -> Iterator[Packet[pb.UploadBlockRequest]]:
            for frame, payload in chunks(tensor, self._link.chunk_bytes):
                idle_timeout.renew()
                message = pb.UploadBlockRequest(session_id=session_id, frame=frame, fence=fence, checkpoint=named)
                yield Packet(message, payload)
            idle_timeout.renew()

        async with self._connection.idle_timeout("UploadBlock") as idle_timeout:
            response: pb.UploadBlockResponse = await self._connection.await_end(
                method(packets(idle_timeout), metadata=self._connection.metadata())
            )
        return response.block_digest

    async def offer_blocks(self, request: pb.OfferBlocksRequest) -> str:
        """The ticket for the blocks. See `TrainerService.OfferBlocks`."""
        answer = await self._connection.call("OfferBlocks", request, pb.OfferBlocksResponse)
        return self._judge.ticket("OfferBlocks", answer.ticket)

    async def fetch_blocks(self, request: pb.FetchBlocksRequest) -> None:
        """Wait until the trainer has downloaded blocks from another one. See `TrainerService.FetchBlocks`."""
        answers = self._answers("FetchBlocks", request, pb.FetchBlocksResponse, MOST_SECONDS_OF_WORK)
        async with aclosing(answers):
            async for _still_coming in answers:
                pass

    async def download_block(
        self,
        session_id: str,
        block: int,
        max_bytes: int,
        *,
        weights_only: bool,
        checkpoint: CheckpointName | None = None,
        ticket: str | None = None,
        announced: Callable[[int], None] = _accept_any,
    ) -> memoryview:
        """The state of a block that the trainer holds. Raises ProtocolError where it has more than `max_bytes`.

        checkpoint: the one on the trainer's disk that has the state; None asks for the state in memory. ticket: a
        trainer's credential, in the place of an agent's token. announced: gets the number of bytes before memory is
        taken for them; its error ends the call.
        """
        method: Any = self._connection.tensors.unary_stream(
            method_path("DownloadBlock"),
            request_serializer=pb.DownloadBlockRequest.SerializeToString,
            response_deserializer=deserializer(pb.DownloadBlockResponse),
        )

        def accept(frame: Frame, key: TensorKey) -> None:
            if key != block_key(block):
                raise ProtocolError(f"the trainer sends {key}; block {block} was asked for")
            check_encoding(frame, codec_by_name("raw"), max_bytes)
            announced(frame.tensor.encoded_bytes)

        assembler = Assembler(accept, aligned_buffer)
        request = pb.DownloadBlockRequest(session_id=session_id, block=block, weights_only=weights_only)
        if checkpoint is not None:
            request.checkpoint.CopyFrom(checkpoint_message(checkpoint))
        call = method(request, metadata=self._shown(ticket))
        async with self._connection.idle_timeout("DownloadBlock") as idle_timeout:
            while (packet := await self._connection.await_answer(call.read())) is not grpc.aio.EOF:
                idle_timeout.renew()
                if (tensor := assembler.add(packet.message.frame, packet.payload)) is not None:
                    return tensor.payload
        raise ProtocolError(f"the stream of block {block} ended before it was whole")

    def _shown(self, ticket: str | None) -> tuple[tuple[str, str], ...]:
        """The caller's credentials as metadata: a ticket, or else the usual ones."""
        return self._connection.metadata() if ticket is None else ticket_metadata(ticket)
