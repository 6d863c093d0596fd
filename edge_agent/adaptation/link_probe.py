"""Probes the link now and then while training hardly uses it, as where all blocks are on the device.

Without probes, a device that took all blocks because the link was bad would never learn that it is good again. Each probe is a
few calls on a connection of its own, bounded in bytes and time, and ends at once when training needs the link.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from edge_agent.adaptation.link_measurement import (
    NotMeasuredError,
    Rate,
    measure_downlink,
    measure_round_trip,
    measure_uplink,
)
from edge_agent.config import EdgeConfig
from shared.client.credentials import TrainerAccess, trainer_access
from shared.client.probing import ProbeCalls
from shared.errors import IsthmusError

_log = structlog.get_logger(__name__)

PERIOD_SECONDS = 60.0
"""The time from the beginning of one probe to that of the next."""
MOST_SECONDS = 30.0
"""The longest that a probe may take; on a link that works it takes about two."""
CALL_SECONDS = 5.0
"""The longest that one of its calls may take, so that a very slow link is not busy for long."""
ROUND_TRIPS = 3
"""How many calls measure the round trip."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bits per second in each direction, and the round trip; None where it is not known."""

    uplink: float | None = None
    downlink: float | None = None
    round_trip_seconds: float | None = None

    def merged_over(self, older: "LinkRates") -> "LinkRates":
        """These rates, and the older ones where these are not known."""
        return LinkRates(
            older.uplink if self.uplink is None else self.uplink,
            older.downlink if self.downlink is None else self.downlink,
            older.round_trip_seconds if self.round_trip_seconds is None else self.round_trip_seconds,
        )


class LinkProbe:
    """The probes of one decision loop, on its event loop. The clock is the caller's."""

    def __init__(self, measure: Callable[[], Awaitable[LinkRates]]) -> None:
        self._measure = measure
        self._task: asyncio.Task[None] | None = None
        self._due_seconds = -math.inf
        self.found = LinkRates()
        """What the last probes since `forget` found."""

    def want(self, seconds: float) -> None:
        """Training hardly uses the link: begin a probe if one is due; the first is due at once. Call about once a second."""
        if seconds >= self._due_seconds and (self._task is None or self._task.done()):
            self._due_seconds = seconds + PERIOD_SECONDS
            self._task = asyncio.create_task(self._probe())

    def end(self) -> None:
        """Training needs the link: end a probe that is under way."""
        if self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """The training stream shows what the link carries: drop what probes found."""
        self.end()
        self.found, self._due_seconds = LinkRates(), -math.inf

    async def close(self) -> None:
        """End the probes; when this returns, none is under way."""
        self.end()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _probe(self) -> None:
        self.found = (await _bounded(self._measure())).merged_over(self.found)


def make_link_probe(config: EdgeConfig) -> LinkProbe:
    """The probe of the link to the configured trainer. Raises ConfigError for files that cannot be used."""
    access = trainer_access(config.only_trainer, config.tls)
    return LinkProbe(lambda: _measured(config, access))


async def probe_link(config: EdgeConfig) -> LinkRates:
    """Probe the link to the configured trainer once. Raises ConfigError for files that cannot be used."""
    return await _bounded(_measured(config, trainer_access(config.only_trainer, config.tls)))


async def probe_round_trip(config: EdgeConfig) -> float | None:
    """Seconds to the configured trainer and back; None where that cannot be measured. Raises ConfigError as `probe_link`."""
    async with ProbeCalls(
        config.only_trainer.address, trainer_access(config.only_trainer, config.tls), config.link, CALL_SECONDS
    ) as calls:
        try:
            return await measure_round_trip(calls, ROUND_TRIPS)
        except NotMeasuredError as why:
            _log.warning("round trip not measured", reason=str(why))
            return None


async def _bounded(measuring: Awaitable[LinkRates]) -> LinkRates:
    """What `measuring` finds within MOST_SECONDS; nothing where it fails."""
    try:
        async with asyncio.timeout(MOST_SECONDS):
            found = await measuring
    except (IsthmusError, NotMeasuredError, TimeoutError) as why:
        _log.debug("link not probed", reason=str(why))
        return LinkRates()
    _log.debug(
        "link probed",
        uplink_bits_per_second=found.uplink,
        downlink_bits_per_second=found.downlink,
        round_trip_seconds=found.round_trip_seconds,
    )
    return found


async def _measured(config: EdgeConfig, access: TrainerAccess) -> LinkRates:
    async with ProbeCalls(config.only_trainer.address, access, config.link, CALL_SECONDS) as calls:
        round_trip_seconds = await measure_round_trip(calls, ROUND_TRIPS)
        return LinkRates(
            await _known(measure_uplink(calls, round_trip_seconds)),
            await _known(measure_downlink(calls, round_trip_seconds)),
            round_trip_seconds,
        )


async def _known(measuring: Coroutine[Any, Any, Rate]) -> float | None:
    """The rate of one direction; None where it could not be measured, as the downlink for a token that may not read."""
    try:
        return (await measuring).bits_per_second
    except NotMeasuredError:
        return None
