"""Probes of the link: their times, and the rates known after each, on a clock and a link of the test."""

import asyncio

import pytest

from edge_agent.adaptation.link_probe import PERIOD_SECONDS, LinkProbe
from shared.client.link_measurement import LinkRates, NotMeasuredError
from shared.errors import ConfigError

GOOD, BAD = LinkRates(5e7, 4e7), LinkRates(1e5, 2e5)


class Measuring:
    """A link with the rates of the next probe. It may fail, or with None never answer."""

    def __init__(self, *found):
        self._found = list(found)
        self.begun = 0

    async def __call__(self):
        self.begun += 1
        found = self._found.pop(0)
        if found is None:
            await asyncio.Event().wait()
        if isinstance(found, Exception):
            raise found
        return found


async def pass_by(probe, *seconds):
    """Request the link's rates at these moments."""
    for moment in seconds:
        probe.want(moment)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_it_probes_at_once_and_then_once_a_period():
    measuring = Measuring(BAD, GOOD)
    probe = LinkProbe(measuring)
    assert probe.found == LinkRates()
    await pass_by(probe, *(100.0 + second for second in range(int(PERIOD_SECONDS))))
    assert (measuring.begun, probe.found) == (1, BAD)
    await pass_by(probe, 100.0 + PERIOD_SECONDS)
    assert (measuring.begun, probe.found) == (2, GOOD)


async def test_one_is_ended_where_training_needs_the_link_and_the_next_is_not_sooner():
    measuring = Measuring(None, GOOD)
    probe = LinkProbe(measuring)
    await pass_by(probe, 0.0, 1.0)
    probe.end()
    await pass_by(probe, 2.0, PERIOD_SECONDS - 1.0)
    assert measuring.begun == 1
    await pass_by(probe, PERIOD_SECONDS)
    assert probe.found == GOOD


async def test_two_never_run_at_a_time():
    measuring = Measuring(None)
    probe = LinkProbe(measuring)
    others = asyncio.all_tasks()
    await pass_by(probe, 0.0, 10 * PERIOD_SECONDS)
    assert measuring.begun == 1
    assert asyncio.all_tasks() - others, "the probe's own"
    await probe.close()
    assert not asyncio.all_tasks() - others


async def test_measured_rates_hold_until_they_are_forgotten():
    measuring = Measuring(BAD, GOOD)
    probe = LinkProbe(measuring)
    await pass_by(probe, 0.0)
    probe.end()
    assert probe.found == BAD
    probe.forget()
    assert probe.found == LinkRates()
    await pass_by(probe, 1.0)
    assert probe.found == GOOD, "the next time it begins at once again"


@pytest.mark.parametrize("failure", [NotMeasuredError("no"), ConfigError("token"), LinkRates()])
async def test_a_failed_probe_keeps_the_known_rates(failure):
    probe = LinkProbe(Measuring(GOOD, failure, LinkRates(uplink=1e6)))
    await pass_by(probe, 0.0, PERIOD_SECONDS)
    assert probe.found == GOOD
    await pass_by(probe, 2 * PERIOD_SECONDS)
    assert probe.found == LinkRates(1e6, GOOD.downlink), "each direction for itself"
