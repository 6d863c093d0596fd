"""The call `TrainCopy`: a process trains the copy, and is ended when its time is up or its caller has gone.

A process of its own, so that sessions share neither the compute thread nor an address space with it, and so that it can
be ended. One at a time; other callers are told to come back.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import structlog
from torch import device

from cloud_trainer.calibration.orders import CopyOrder, order_of
from cloud_trainer.config import TrainerConfig
from cloud_trainer.sessions.limits import Limits
from shared.transport.rpc.refusing import Context
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
BEGINS = "import isthmus_entry_points; from cloud_trainer.calibration.process import main; main()"
"""Begin of a process that trains a copy. The first import finds our packages before others of their names."""
_RETRY_SECONDS = 60.0


class CopyTrainings:
    """All trainings of copies of one trainer."""

    def __init__(self, config: TrainerConfig, limits: Limits, on: device) -> None:
        self._config, self._limits, self._device = config, limits, str(on)
        self._busy = asyncio.Lock()

    async def train_copy(self, request: pb.TrainCopyRequest, context: Context) -> None:
        """Train one copy and say how it went."""
        order = order_of(request, self._config, self._limits, self._device)
        if self._busy.locked():
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "another copy is being trained for a calibration", _RETRY_SECONDS
            )
        async with self._busy, _process(order) as process:
            limit_seconds = self._config.calibration.max_seconds
            try:
                async with asyncio.timeout(limit_seconds):
                    await _pass_on(process, context)
            except TimeoutError as cause:
                raise StatusError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"a copy was not trained within {limit_seconds:g} s (calibration.max_seconds)",
                ) from cause


async def _pass_on(process: asyncio.subprocess.Process, context: Context) -> None:
    """Pass the reports of the process to the edge. Raises StatusError where it has failed."""
    assert process.stdout is not None
    async for line in process.stdout:
        report = json.loads(line)
        if (refused := report.get("refused")) is not None:
            raise StatusError(grpc.StatusCode[refused["code"]], refused["sentence"])
        await context.write(
            pb.TrainCopyResponse(
                steps=report["steps"],
                judged=pb.CopyJudged(**report["judged"]) if "judged" in report else None,
                timing=pb.CopyTiming(**report["timing"]) if "timing" in report else None,
            )
        )
    if code := await process.wait():
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the process that trained the copy ended with {code}, as one that lacks memory may; the trainer's log says more",
        )


@asynccontextmanager
async def _process(order: CopyOrder) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process that trains the ordered copy. It is ended on the way out."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", BEGINS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # it finds modules where this process does
    )
    try:
        assert process.stdin is not None
        process.stdin.write(order.model_dump_json().encode())
        process.stdin.close()
        _log.info("training a copy", model=order.factory, cut=order.cut, staleness=order.staleness, codec=order.codec)
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
