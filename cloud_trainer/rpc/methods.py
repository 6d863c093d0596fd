"""The methods of `TrainerService` as gRPC takes them."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.service import TrainerService
from cloud_trainer.sessions.device_watch import DeviceWatch
from shared.transport.rpc.refusing import Context, refusing
from shared.transport.stream.packets import deserializer, message_deserializer, serialize
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage

SERVICE = "isthmus.v1.TrainerService"

T = TypeVar("T")


def handlers(service: TrainerService, metrics: TrainerMetrics, watch: DeviceWatch) -> grpc.GenericRpcHandler:
    """The service as gRPC takes it: streamed messages pass our own serializer, the others protobuf's.

    watch: hears of a device that fails in a call.
    """

    def method(call: Callable[[Any, Context], Awaitable[T]]) -> Callable[[Any, Context], Awaitable[T]]:
        return refusing(watch.watched(call), "the trainer", metrics.failed)

    unary, up = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
    down, calls = grpc.unary_stream_rpc_method_handler, service.session_calls
    offered = service.offered_blocks

    def message(request: Any) -> dict[str, Any]:
        return {"request_deserializer": message_deserializer(request), "response_serializer": _to_bytes}

    def packets(request: Any, response: Callable[..., bytes]) -> dict[str, Any]:
        return {"request_deserializer": deserializer(request), "response_serializer": response}

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "OpenSession": unary(method(service.open_session), **message(pb.OpenSessionRequest)),
            "GetSession": unary(method(service.get_session), **message(pb.GetSessionRequest)),
            "MeasureStage": unary(method(service.measure_stage), **message(pb.MeasureStageRequest)),
            "CloseSession": unary(method(service.close_session), **message(pb.CloseSessionRequest)),
            "UploadBlock": up(method(service.upload_block), **packets(pb.UploadBlockRequest, _to_bytes)),
            "DownloadBlock": down(
                method(service.download_block),
                request_deserializer=message_deserializer(pb.DownloadBlockRequest),
                response_serializer=serialize,
            ),
            "TrainCopy": down(method(service.copies.train_copy), **message(pb.TrainCopyRequest)),
            "Link": grpc.stream_stream_rpc_method_handler(
                method(service.link_rpc.link), **packets(LinkMessage, serialize)
            ),
            "Relay": grpc.stream_stream_rpc_method_handler(method(service.relays.relay), **message(pb.RelayMessage)),
            "JoinSession": unary(method(calls.join_session), **message(pb.JoinSessionRequest)),
            "RestoreWorker": unary(method(calls.restore_worker), **message(pb.RestoreWorkerRequest)),
            "CommitPlacement": unary(method(calls.commit_placement), **message(pb.CommitPlacementRequest)),
            "LeaveGroup": unary(method(calls.leave_group), **message(pb.LeaveGroupRequest)),
            "JoinGroup": unary(method(calls.join_group), **message(pb.JoinGroupRequest)),
            "DialPeers": unary(method(calls.dial_peers), **message(pb.DialPeersRequest)),
            "CheckPeers": unary(method(calls.check_peers), **message(pb.CheckPeersRequest)),
            "MeasureLink": unary(method(calls.measure_link), **message(pb.MeasureLinkRequest)),
            "Probe": unary(method(service.probing.probe), **message(pb.ProbeRequest)),
            "OfferBlocks": unary(method(offered.offer_blocks), **message(pb.OfferBlocksRequest)),
            "FetchBlocks": down(method(offered.fetch_blocks), **message(pb.FetchBlocksRequest)),
            "CheckpointWorker": down(method(calls.checkpoint_worker), **message(pb.CheckpointWorkerRequest)),
            "JoinEvaluation": down(method(calls.join_evaluation), **message(pb.JoinEvaluationRequest)),
        },
    )


def _to_bytes(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]
