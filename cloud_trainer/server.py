"""The trainer as a process: it listens, answers for its health, and stops when it is told to."""

import asyncio
import signal
from pathlib import Path

import grpc
import structlog
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from cloud_trainer.config import TrainerConfig
from cloud_trainer.service import SERVICE, TrainerService
from shared.errors import ConfigError, ListenError
from shared.model.device import choose_device
from shared.telemetry.metrics import TrainingMetrics, serve_metrics
from shared.transport.malloc import keep_message_memory
from shared.transport.options import server_options

_log = structlog.get_logger(__name__)
STOP_GRACE_SECONDS = 5.0


class TrainerServer:
    """A running trainer. `address` is what it really listens on."""

    def __init__(self, config: TrainerConfig) -> None:
        self._config = config
        self.metrics = TrainingMetrics(CollectorRegistry())
        self.service = TrainerService(config, choose_device(config.compute.device), self.metrics)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen. Raises ListenError when the address cannot be had; nothing is left listening then."""
        keep_message_memory()
        config = self._config.server
        options = server_options(config.max_message_bytes, self._config.link.keepalive_seconds)
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((self.service.handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        try:
            port = server.add_insecure_port(config.listen)
        except RuntimeError as cause:
            raise ListenError(
                f"server.listen: cannot listen on {config.listen}; is the port in use, or the address not this machine's?"
            ) from cause
        await server.start()
        self._server = server
        self.address = f"{config.listen.rpartition(':')[0]}:{port}"
        await self._set_health(serving=True)
        _log.info("listening", address=self.address)

    async def stop(self) -> None:
        """Say so in health, let calls end for a few seconds, and end."""
        await self._set_health(serving=False)
        if self._server is not None:
            await self._server.stop(STOP_GRACE_SECONDS)
        self.service.close()

    async def _set_health(self, *, serving: bool) -> None:
        states = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, states.SERVING if serving else states.NOT_SERVING)


async def serve(config: TrainerConfig) -> None:
    """Run a trainer until SIGTERM or SIGINT."""
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    server = TrainerServer(config)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if config.metrics.listen is not None:
        _log.info("metrics", address=serve_metrics(config.metrics.listen, server.metrics.registry))
    await server.start()
    try:
        if config.server.address_file is not None:
            _write_address(config.server.address_file, server.address)
        await stopping.wait()
    finally:
        await server.stop()


def _write_address(path: Path, address: str) -> None:
    """Whole or not at all: whoever waits for the file must not read half an address."""
    scratch = path.with_name(path.name + ".new")
    try:
        scratch.write_text(address + "\n")
        scratch.replace(path)
    except OSError as cause:
        raise ConfigError(f"server.address_file: {path} cannot be written: {cause.strerror}") from cause
