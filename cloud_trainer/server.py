"""The trainer as a process: it listens, answers for its health, and stops when it is told to."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import structlog

# Counting a model's memory needs torch's compiler: 800 modules and a second, in which others train already.
import torch._dynamo  # noqa: F401
from grpc_health.v1 import health, health_pb2_grpc
from prometheus_client import CollectorRegistry

from cloud_trainer.config import TrainerConfig
from cloud_trainer.control.service import SERVICE as CONTROL
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.access import DOWNLOAD_BLOCK, LINK, REFLECTION, build_gate, build_probe_gate, listen
from cloud_trainer.rpc.connections import Connections
from cloud_trainer.rpc.methods import SERVICE, handlers
from cloud_trainer.rpc.service import TrainerService
from cloud_trainer.sessions.device_watch import DeviceWatch
from shared.checkpoint import HELD_SECONDS
from shared.commands.service_manager import ServiceManager
from shared.concurrency.tasks import repeat
from shared.control.serving import Health, control_handlers, serving_operators
from shared.errors import ConfigError, ExitCode, ListenError
from shared.telemetry.metrics import serving_metrics
from shared.telemetry.raw_lines import RawLines
from shared.training.device import choose_device, prepare_device, prepare_process
from shared.transport.auth.gate import Gate
from shared.transport.rpc.options import server_options
from shared.transport.rpc.reflection import reflect

_log = structlog.get_logger(__name__)
STOP_GRACE_SECONDS = 1.0
"""Time for calls that are under way when the edges have left, and again for current computations."""
TIDY_SECONDS = 3600.0
"""Interval at which the trainer looks for sessions that were not resumed for too long
(checkpoints.forget_after_days)."""
STATUS_SECONDS = 2.0
"""Interval at which a service manager is told the status. The rate in it is taken over the same time."""


class TrainerServer:
    """A running trainer. `address` is the one that it really listens on, `health_address` the one where it answers probes."""

    def __init__(self, config: TrainerConfig) -> None:
        prepare_process(config.compute.threads)
        self._config = config
        self.metrics = TrainerMetrics(CollectorRegistry())
        device = choose_device(config.compute.device)
        prepare_device(device, deterministic=config.compute.deterministic)
        self.service = TrainerService(config, device, self.metrics)
        self.stopping = asyncio.Event()
        """Set when the trainer is to stop, by a signal or an operator, or because its device has failed."""
        self.device_watch = DeviceWatch(self.stopping.set)
        self.connections = Connections(self.metrics)
        self._control = self.service.control(self.stopping)
        self._health = Health()
        self._local = AsyncExitStack()
        self._servers: list[grpc.aio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        """Tidying, renewing and watching, while it serves."""
        self.address = self.health_address = ""

    async def start(self) -> None:
        """Listen. Raises ListenError when the address cannot be listened on, ConfigError for files that cannot be used."""
        config = self._config.server
        options = server_options(config.max_message_bytes, self._config.link.keepalive_seconds)
        offers = self.service.offered_blocks.find_ticket
        tickets = {LINK: self.service.link_rpc.find_ticket, DOWNLOAD_BLOCK: offers, REFLECTION: offers}
        gate = build_gate(self._config, self.metrics, self.connections, tickets)
        server = grpc.aio.server(options=options, interceptors=[gate])
        controlling = control_handlers(CONTROL, self._control, "the trainer", self.metrics.failed)
        server.add_generic_rpc_handlers((handlers(self.service, self.metrics, self.device_watch), controlling))
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        reflect(server, SERVICE.full_name, CONTROL.full_name, health.SERVICE_NAME)
        with _refusals_of("server.listen", config.listen):
            port = listen(server, self._config)
        servers = [server]
        if config.health_listen is not None:
            probe_gate = build_probe_gate(self._config, self.metrics, self.connections)
            probed = grpc.aio.server(options=options, interceptors=[probe_gate])
            probed.add_generic_rpc_handlers((self._health.check_alone,))
            with _refusals_of("server.health_listen", config.health_listen):
                health_port = probed.add_insecure_port(config.health_listen)
            self.health_address = f"{config.health_listen.rpartition(':')[0]}:{health_port}"
            servers.append(probed)
        self.address = self._control.address = f"{config.listen.rpartition(':')[0]}:{port}"
        await self._local.enter_async_context(
            serving_operators(
                self._config.control, self._config.web, "cloud-trainer", controlling, CONTROL, self._health
            )
        )
        for each in servers:
            await each.start()
        self._servers = servers
        tidying = repeat("removing abandoned sessions", self.service.tidy, TIDY_SECONDS)
        renewing = repeat("holding sessions", self.service.renew, HELD_SECONDS / 3)
        self._tasks = [asyncio.create_task(tidying), asyncio.create_task(renewing)]
        await self._set_health(serving=True)
        self._tasks.append(asyncio.create_task(gate.keep_watch(partial(self._say_whether_open, gate))))
        _log.info("listening", address=self.address)

    def counted(self, metric: str) -> float:
        """Return the value of a metric without labels."""
        return self.metrics.registry.get_sample_value(metric) or 0.0

    async def stop(self) -> bool:
        """Say so in health, let edges take a checkpoint and calls end, each for a few seconds, and end.

        Returns whether all computation has ended; where it has not, only the end of the process ends it.
        """
        self.stopping.set()
        self.connections.close()
        for task in self._tasks:
            task.cancel()
        await self._set_health(serving=False)
        if self.device_watch.failure is None:  # without a device no checkpoint can be taken
            await self.service.stop(self._config.server.stop_seconds)
        await asyncio.gather(*(server.stop(STOP_GRACE_SECONDS) for server in self._servers), self._local.aclose())
        if ended := await self.service.close(STOP_GRACE_SECONDS):
            return ended
        _log.warning("a computation goes on and is given up", waited_seconds=STOP_GRACE_SECONDS)
        return ended

    async def _say_whether_open(self, gate: Gate) -> None:
        """Set the health of the service: not serving while no new caller is admitted. Present callers are still served,
        so a restart is not needed."""
        await self._health.say(gate.open, SERVICE.full_name)

    async def _set_health(self, *, serving: bool) -> None:
        await self._health.say(serving, "", SERVICE.full_name, CONTROL.full_name)


@contextmanager
def _refusals_of(key: str, address: str) -> Iterator[None]:
    """Turn gRPC's error for an address that cannot be listened on into a ListenError."""
    try:
        yield
    except RuntimeError as cause:
        raise ListenError(
            f"{key}: cannot listen on {address}; is the port in use, or the address not this machine's?"
        ) from cause


async def serve(config: TrainerConfig, raw_lines: RawLines | None = None) -> None:
    """Run a trainer until SIGTERM or SIGINT. Raises DeviceError when its device has failed for good.

    raw_lines: reads gRPC's lines about handshakes.
    """
    server = TrainerServer(config)
    if raw_lines is not None:
        server.connections.follow(raw_lines)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_once, server.stopping)
    manager = ServiceManager()
    with serving_metrics(config.metrics.listen, server.metrics.registry):
        await server.start()
        # Present objects stay. A search for garbage among them would hold up all threads for as long as a check may
        # take.
        gc.freeze()
        try:
            if config.server.address_file is not None:
                _write_address(config.server.address_file, server.address)
            manager.ready()
            await _report(manager, server)
        finally:
            manager.stopping()
            ended = await server.stop()
    failure = server.device_watch.failure
    if not ended:
        # A thread that computes would wake up in an interpreter that is being taken down, which ends in a crash.
        logging.shutdown()
        os._exit(ExitCode.OK if failure is None else failure.exit_code)
    if failure is not None:
        raise failure


async def _report(manager: ServiceManager, server: TrainerServer) -> None:
    """Report the state to the service manager, until the trainer stops."""
    before = 0.0
    while not server.stopping.is_set():
        steps = server.counted("isthmus_steps_total")
        rate, before = (steps - before) / STATUS_SECONDS, steps
        sessions = server.counted("isthmus_sessions")
        manager.status(f"{sessions:.0f} sessions, {rate:.0f} steps/s, listening on {server.address}")
        with suppress(TimeoutError):
            await asyncio.wait_for(server.stopping.wait(), STATUS_SECONDS)


def _stop_once(stopping: asyncio.Event) -> None:
    """Begin to stop; a second signal ends the process at once."""
    stopping.set()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def _write_address(path: Path, address: str) -> None:
    """Write the file whole or not at all: a reader must not get half an address."""
    scratch = path.with_name(path.name + ".new")
    try:
        scratch.write_text(address + "\n")
        scratch.replace(path)
    except OSError as cause:
        raise ConfigError(f"server.address_file: {path} cannot be written: {cause.strerror}") from cause
