"""Control services over gRPC: their handlers, a server that only this machine reaches, and their page where one is wanted.

A service is an object with one coroutine method, or asynchronous generator, for each RPC of the contract, named in snake case.
"""

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.config import ControlConfig, WebConfig
from shared.control.address import control_targets, held_first
from shared.errors import ListenError
from shared.transport.rpc.contract import Answer, handlers_of
from shared.transport.rpc.options import server_options
from shared.transport.rpc.reflection import reflect
from shared.transport.rpc.refusing import Context, refusing

_log = structlog.get_logger(__name__)
_MOST_CALLS = 64
"""Under way at one time on the local server; each may be a Watch."""
_MOST_BYTES = 1024 * 1024
"""The largest message, which is the contract with its comments."""
_GRACE_SECONDS = 1.0
_KEEPALIVE_SECONDS = 60.0


class Health:
    """The state of a process for grpc.health.v1."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        """Check and Watch."""
        self._said: dict[str, bool] = {}

    @property
    def check_alone(self) -> grpc.GenericRpcHandler:
        """Check without Watch: for a port without authentication, on which no call may stay open."""
        return grpc.method_handlers_generic_handler(
            health.SERVICE_NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(
                    self.servicer.Check,
                    request_deserializer=health_pb2.HealthCheckRequest.FromString,
                    response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
                )
            },
        )

    async def say(self, serving: bool, *names: str) -> None:
        """Report these names as SERVING or NOT_SERVING from now on; watchers hear of changes only."""
        for name in names:
            if self._said.get(name) is not serving:
                self._said[name] = serving
                state = health_pb2.HealthCheckResponse
                await self.servicer.set(name, state.SERVING if serving else state.NOT_SERVING)


def control_handlers(
    service: ServiceDescriptor, answers: object, side: str, failed: Callable[[grpc.StatusCode], object]
) -> grpc.GenericRpcHandler:
    """Every RPC of a control service, answered by the method of that name; all have one request.

    side: "the agent" or "the trainer". failed: told how each call ended that failed.
    """

    def wrapped(method: MethodDescriptor, answer: Any) -> Answer:
        @functools.wraps(answer)
        async def stream(request: Any, context: Context) -> None:
            async with aclosing(answer(request)) as responses:
                async for response in responses:
                    await context.write(response)

        @functools.wraps(answer)
        async def once(request: Any, _context: Context) -> Any:
            return await answer(request)

        return refusing(stream if method.server_streaming else once, side, failed)

    return handlers_of(service, (answers,), wrapped)


@asynccontextmanager
async def serving_operators(
    control: ControlConfig,
    web: WebConfig,
    name: str,
    answering: grpc.GenericRpcHandler,
    service: ServiceDescriptor,
    health_of: Health,
) -> AsyncIterator[None]:
    """Answer control calls, health and reflection on this machine alone, and serve the page, while the block runs.

    name: of the command. The log says where it listens. Raises ListenError when that cannot be had; at control.listen "auto" it
    only warns. Raises ConfigError where files of the page cannot be used.
    """
    listen = control.listen
    async with AsyncExitStack() as stack:
        if web.listen is not None:
            from shared.web import serving_page  # nothing of it is loaded where there is no page

            await stack.enter_async_context(serving_page(web, service, answering))
        if listen == "none":
            yield
            return
        try:
            await stack.enter_async_context(
                _served(control_targets(listen, name), answering, service.full_name, health_of)
            )
        except ListenError as refused:
            if listen != "auto":
                raise
            _log.warning("not controlled from anywhere", reason=str(refused))
        yield


@asynccontextmanager
async def _served(
    targets: Sequence[str], answering: grpc.GenericRpcHandler, name: str, health_of: Health
) -> AsyncIterator[None]:
    with held_first(targets) as (target, path):
        options = server_options(_MOST_BYTES, _KEEPALIVE_SECONDS)
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        server.add_generic_rpc_handlers((answering,))
        health_pb2_grpc.add_HealthServicer_to_server(health_of.servicer, server)
        reflect(server, name, health.SERVICE_NAME)
        try:
            port = server.add_insecure_port(target)
        except RuntimeError as cause:
            raise ListenError(
                f"control.listen: cannot listen on {target}; is the port in use, or the path longer than 100 letters?"
            ) from cause
        await server.start()
        if path is not None:
            path.chmod(0o600)
        _log.info("controlled at", address=target if path is not None else f"{target.rpartition(':')[0]}:{port}")
        try:
            yield
        finally:
            await server.stop(_GRACE_SECONDS)
