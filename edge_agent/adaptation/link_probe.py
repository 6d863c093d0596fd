"""The links from the device as training streams show them, and probes of those that training hardly uses.

Without probes, a device that took all blocks because the link was bad would never learn that it is good again. Each
probe is a few calls on a connection of its own, bounded in bytes and time, and ends at once when training needs the link.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import structlog

from edge_agent.config import EdgeConfig
from edge_agent.planning import Engine
from edge_agent.training.statistics import Statistics
from shared.client.config import TrainerAddressConfig
from shared.client.credentials import TrainerAccess, trainer_access
from shared.client.link_measurement import (
    CALL_SECONDS,
    ROUND_TRIPS,
    LinkRates,
    NotMeasuredError,
    measure_link,
    measure_round_trip,
)
from shared.client.probing import ProbeCalls
from shared.errors import IsthmusError

_log = structlog.get_logger(__name__)

PERIOD_SECONDS = 60.0
"""Time from the beginning of one probe to that of the next."""
TELLING_STEPS = 20
"""Number of steps after which a stream that has shown no rates sends too little to show any."""


class LinkProbe:
    """The probes of one link, on the event loop. The caller gives the clock."""

    def __init__(self, measure: Callable[[], Awaitable[LinkRates]]) -> None:
        self._measure = measure
        self._task: asyncio.Task[None] | None = None
        self._due_seconds = -math.inf
        self.found = LinkRates()
        """Rates that the probes found since the last `forget`."""

    def want(self, seconds: float) -> None:
        """Begin a probe if one is due, because training hardly uses the link. The first is due at once. Call about once
        a second."""
        if seconds >= self._due_seconds and (self._task is None or self._task.done()):
            self._due_seconds = seconds + PERIOD_SECONDS
            self._task = asyncio.create_task(self._probe())

    def end(self) -> None:
        """End a probe that is under way, because training needs the link."""
        if self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """Forget the rates of probes, because the training stream shows them."""
        self.end()
        self.found, self._due_seconds = LinkRates(), -math.inf

    async def close(self) -> None:
        """End the probes. On return, none is under way."""
        self.end()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _probe(self) -> None:
        self.found = (await _found(self._measure())).merged_over(self.found)


class SeenLinks:
    """The links of one run. Used on its event loop."""

    def __init__(self, here: str, statistics: Statistics, probes: Mapping[str, LinkProbe]) -> None:
        """here: the first worker. probes: of its links to the others, by their names."""
        self._here, self._statistics, self._probes = here, statistics, probes

    def known(self, engine: Engine, seconds: float, *, is_moving: bool) -> dict[str, LinkRates]:
        """Return what is known of the links from here that the layout uses, or of all of them if it uses none: from the
        training streams, or from probes where these hardly use a link. Empty until one was measured."""
        layout = engine.layout
        used, is_alone = layout.partners(self._here), len(layout.workers) == 1
        found = {}
        for name in used or engine.names[1:]:
            streamed, probe = self._streamed(name), self._probes[name]
            if is_moving:
                probe.end()
            elif is_alone:
                if _may_use_links(engine):
                    probe.want(seconds)
            elif streamed.uplink is not None and streamed.downlink is not None:
                probe.forget()
            elif self._statistics.steps >= TELLING_STEPS:
                probe.want(seconds)
            link = probe.found.merged_over(streamed)
            if link.uplink is not None and link.downlink is not None:
                found[name] = link
        return found

    def end(self) -> None:
        """End the probes that are under way, because training needs the links."""
        for probe in self._probes.values():
            probe.end()

    async def close(self) -> None:
        """End the probes. On return, none is under way."""
        for probe in self._probes.values():
            await probe.close()

    def are_measured(self, engine: Engine) -> bool:
        """Tell whether the profile says what the link from here carries, and training has had the time to say it."""
        workers = engine.layout.workers
        link = engine.question.profile.way(*workers[:2]) if len(workers) > 1 else None
        return link is not None and link.uplink is not None and self._statistics.steps >= TELLING_STEPS

    def _streamed(self, name: str) -> LinkRates:
        """Return what the training stream to a worker shows of its link."""
        rates, hop = self._statistics.link_rates, (self._here, name)
        return LinkRates(rates.get(hop), rates.get(hop[::-1]), self._statistics.link_trips.get(hop))


def _may_use_links(engine: Engine) -> bool:
    """Tell whether any layout may be chosen but the first worker alone."""
    question = engine.question
    return len(question.permitted) > 1 and question.space.cuts != (len(question.profile),)


def make_link_probes(config: EdgeConfig, names: Sequence[str]) -> dict[str, LinkProbe]:
    """Make the probes of the links to trainers, by their names. Raises ConfigError for files that cannot be used."""
    trainers = {trainer.name: trainer for trainer in config.all_trainers}
    return {
        name: LinkProbe(partial(_measured, config, trainers[name], trainer_access(trainers[name], config.tls)))
        for name in names
    }


async def probe_link(config: EdgeConfig, trainer: TrainerAddressConfig) -> LinkRates:
    """Measure the link to a trainer. The result is empty if that fails.

    Raises ConfigError for files that cannot be used.
    """
    return await _found(_measured(config, trainer, trainer_access(trainer, config.tls)))


async def probe_round_trip(config: EdgeConfig) -> float | None:
    """Return the seconds to the configured trainer and back; None if that cannot be measured. Raises ConfigError as
    `probe_link`."""
    trainer = config.only_trainer
    async with ProbeCalls(trainer.address, trainer_access(trainer, config.tls), config.link, CALL_SECONDS) as calls:
        try:
            return await measure_round_trip(calls, ROUND_TRIPS)
        except NotMeasuredError as why:
            _log.warning("round trip not measured", reason=str(why))
            return None


async def _measured(config: EdgeConfig, trainer: TrainerAddressConfig, access: TrainerAccess) -> LinkRates:
    async with ProbeCalls(trainer.address, access, config.link, CALL_SECONDS) as calls:
        return await measure_link(calls)


async def _found(measuring: Awaitable[LinkRates]) -> LinkRates:
    """Return the result of `measuring`; empty if it fails."""
    try:
        found = await measuring
    except (IsthmusError, NotMeasuredError) as why:
        _log.debug("link not probed", reason=str(why))
        return LinkRates()
    _log.debug(
        "link probed",
        uplink_bits_per_second=found.uplink,
        downlink_bits_per_second=found.downlink,
        round_trip_seconds=found.round_trip_seconds,
    )
    return found
