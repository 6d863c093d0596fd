"""Trying again: for as long as the user allows, and no sooner than the trainer has asked for."""

import pytest

from shared.client.retry import Retry
from shared.errors import BusyError, UnreachableError


@pytest.mark.parametrize("kind", [UnreachableError, BusyError])
async def test_nobody_asks_again_before_the_trainer_has_said(kind):
    asked = []

    async def attempt():
        asked.append(1)
        raise kind("in half an hour", 1800.0)

    with pytest.raises(kind, match="in half an hour"):
        await Retry(give_up_seconds=60.0).run(attempt)
    assert len(asked) == 1, "the answer would come after the time that the user allows"
