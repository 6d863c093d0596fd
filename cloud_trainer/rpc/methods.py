"""The methods of `TrainerService` as gRPC takes them."""

from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.service import TrainerService
from cloud_trainer.sessions.device_watch import DeviceWatch
from shared.transport.rpc.contract import Answer, handlers_of
from shared.transport.rpc.refusing import refusing
from shared.wire.isthmus.v1 import trainer_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["TrainerService"]


def handlers(service: TrainerService, metrics: TrainerMetrics, watch: DeviceWatch) -> grpc.GenericRpcHandler:
    """Return the handlers of the service. watch: hears of a device that fails in a call."""

    def wrapped(_method: MethodDescriptor, answer: Any) -> Answer:
        return refusing(watch.watched(answer), "the trainer", metrics.failed)

    return handlers_of(SERVICE, service.answers, wrapped)
