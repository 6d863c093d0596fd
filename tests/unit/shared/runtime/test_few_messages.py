"""The number of messages of a step: one each way on a quick link."""

from collections import Counter
from dataclasses import replace

import pytest

from shared.placement import Placement, Rows, Source, Tile
from tests.support.linked import LinkedSession
from tests.support.placed import batch_of, built, recipe
from tests.support.virtual import Wire, run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
WHOLE = Rows(0, 4)
TWO = Placement(
    version=2,
    blocks=4,
    batch_size=4,
    workers=("edge", "gpu"),
    tiles=(Tile("edge", 0, 2, WHOLE), Tile("gpu", 2, 4, WHOLE)),
    sources=(Source("edge", WHOLE),),
)
STEPS = 60
BESIDE = 8
"""Messages that belong to no step: positions, the first measurement of the link, and those that wait at the end."""


@pytest.mark.first_case
@pytest.mark.parametrize("staleness", [0, 1, 5])
def test_a_step_is_one_message_each_way(staleness):
    written: Counter[str] = Counter()

    class Counted(Wire):
        def __init__(self, sender: str) -> None:
            super().__init__(1e9, 1e-4)
            self._sender = sender

        async def write(self, packet) -> None:
            written[self._sender] += 1
            await super().write(packet)

    async def main() -> None:
        session = LinkedSession(
            built("dropping"),
            replace(TWO, staleness=staleness),
            recipe("sgd"),
            seconds=lambda: 0.0005,
            wires=lambda sender, _: Counted(sender),
        )
        await session.train([batch_of(step, 4) for step in range(STEPS)])

    run_virtually(main)
    for worker in ("edge", "gpu"):
        assert STEPS <= written[worker] <= STEPS + BESIDE, written
