"""A run whose pipeline fails: nothing of what was in flight is left to be shown or sent."""

import pytest

from shared.errors import ModelError
from tests.support.virtual import run_virtually
from tests.support.virtual_split import Delays, VirtualSplit


def test_a_run_that_fails_leaves_no_batch_in_flight():
    split: VirtualSplit
    in_flight: list[int] = []

    def failing(step):
        in_flight.append(split.pipeline.in_flight)
        if step == 6:
            raise ModelError("the seventh batch is wrong")

    async def main() -> None:
        nonlocal split
        slow = Delays(up=lambda: 1.0, down=lambda: 1.0)
        split = VirtualSplit(delays=slow, deployment={"staleness": 3})
        split.on_forward = failing
        await split.train([20])

    with pytest.raises(ModelError, match="seventh"):
        run_virtually(main)
    assert max(in_flight) == 4, "K + 1 batches were on their way"
    assert split.pipeline.in_flight == 0
    assert not any(split.pipeline.waiting.values())
    assert split.window.owed() is None
    assert set(split.window.position) == {len(split.record.staleness)}
