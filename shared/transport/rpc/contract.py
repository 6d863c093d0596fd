"""A service of the contract by its descriptor: the path and the codecs of each method, its handlers, and its stub.

So an RPC is its proto, the method that answers it, and its caller.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from shared.transport.stream.packets import deserializer, message_deserializer, serialize

Answer = Callable[[Any, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[Any]]
"""Answers one call: it returns the one response, or writes each to the context."""


def path_of(method: MethodDescriptor) -> str:
    """Return the path by which gRPC calls a method: "/package.Service/Method"."""
    return f"/{method.containing_service.full_name}/{method.name}"


def handlers_of(
    service: ServiceDescriptor, answers: Sequence[object], wrapped: Callable[[MethodDescriptor, Any], Answer]
) -> grpc.GenericRpcHandler:
    """Every method of a service, answered by the attribute of its name in snake case, of the first of `answers` that has it.

    wrapped: makes an `Answer` of that attribute, which turns errors into statuses.
    """
    return grpc.method_handlers_generic_handler(
        service.full_name, {method.name: _handler(method, answers, wrapped) for method in service.methods}
    )


def _handler(
    method: MethodDescriptor, answers: Sequence[object], wrapped: Callable[[MethodDescriptor, Any], Answer]
) -> "grpc.RpcMethodHandler[Any, Any]":
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    answering = next((each for each in answers if hasattr(each, name)), answers[0])
    answer = wrapped(method, getattr(answering, name))
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    kind: Any = kinds[method.client_streaming, method.server_streaming]
    handler: grpc.RpcMethodHandler[Any, Any] = kind(
        answer,
        request_deserializer=_deserializer(method.input_type),
        response_serializer=_serializer(method.output_type),
    )
    return handler


class Stub:
    """The calls of a service on one channel, each an attribute by the name of its method."""

    def __init__(self, service: ServiceDescriptor, channel: "grpc.Channel | grpc.aio.Channel") -> None:
        for method in service.methods:
            kind = f"{_streamed(method.client_streaming)}_{_streamed(method.server_streaming)}"
            call = getattr(channel, kind)(
                path_of(method),
                request_serializer=_serializer(method.input_type),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no method {name}")


def _streamed(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _is_packet(message: Descriptor) -> bool:
    """Tell whether a message ends with a checksum, and so is a packet of our own serializer."""
    return "checksum" in message.fields_by_name


def _serializer(message: Descriptor) -> Callable[[Any], bytes]:
    return serialize if _is_packet(message) else GetMessageClass(message).SerializeToString


def _deserializer(message: Descriptor) -> Callable[[bytes], Any]:
    return (deserializer if _is_packet(message) else message_deserializer)(GetMessageClass(message))
