"""A trainer that reports progress for ever is given up."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from shared.client.config import TrainerAddressConfig
from shared.client.idle_timeout import MOST_SECONDS_OF_WORK
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import UnreachableError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.virtual import run_virtually

A_MINUTE = 60.0


class GoingOn:
    """A call whose answers report progress, once a minute."""

    def __init__(self, answer):
        self._answer = answer

    async def read(self):
        """Read as grpc.aio does."""
        await asyncio.sleep(A_MINUTE)
        return self._answer

    def cancel(self):
        """Cancel as grpc.aio does."""


def access_to(answer):
    channel = SimpleNamespace(unary_stream=lambda *_, **__: lambda *_, **__: GoingOn(answer))
    return SimpleNamespace(
        channel=lambda *_: channel,
        metadata=tuple,
        credentials=lambda: None,
        trainer_section="",
        tls_section="",
        proxy=None,
    )


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        (pb.FetchBlocksResponse(), lambda client: client.fetch_blocks(pb.FetchBlocksRequest())),
        (pb.TrainCopyResponse(steps=1), lambda client: client.train_copy(pb.TrainCopyRequest())),
    ],
)
def test_work_that_never_ends_is_given_up_after_a_day(answer, call):
    async def main():
        client = TrainerClient(TrainerAddressConfig(), LinkConfig(), access=access_to(answer))
        began = time.monotonic()
        with pytest.raises(
            UnreachableError, match=r"was not done after 86400 s \(\w+\), though it said that it went on"
        ):
            await asyncio.wait_for(call(client), 10 * MOST_SECONDS_OF_WORK)
        return time.monotonic() - began

    assert MOST_SECONDS_OF_WORK <= run_virtually(main) < MOST_SECONDS_OF_WORK + A_MINUTE
