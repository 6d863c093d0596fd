"""Measuring while a session trains: a failure is an error that the caller knows."""

from types import SimpleNamespace

import pytest

from edge_agent.profiling.timers import timer_meanwhile
from shared.errors import UnreachableError


async def test_a_trainer_that_the_run_goes_on_without_cannot_be_measured():
    with pytest.raises(UnreachableError, match="the run goes on without 'near'"):
        async with timer_meanwhile(SimpleNamespace(members={}), "near"):
            pass
