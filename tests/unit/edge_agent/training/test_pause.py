"""Pauses of a run: a caller that waits for a standstill is told if it never comes."""

import asyncio

import pytest

from edge_agent.training.shutdown import Shutdown
from edge_agent.training.step_boundary import Pause, StepBoundary
from shared.errors import StoppedError


async def test_a_caller_that_waits_for_a_standstill_is_told_if_none_comes():
    pause = Pause(StepBoundary(), Shutdown())
    waiting = asyncio.create_task(pause.pause())
    await asyncio.sleep(0)
    assert pause.requested
    pause.release()
    with pytest.raises(StoppedError, match="resumed, or ended, before it stood still"):
        await waiting
