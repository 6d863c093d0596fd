"""The schedule of a group's member, made again from what it measures while it trains (paper 002).

What its own steps and links show says what its layers take: no step is made longer for it. A look once a second costs nothing
where nothing has changed. A schedule is made on another thread than the one that computes, and comes into force at a boundary
of this member's own steps: a trainer has another exchange with it, and no other member.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median

import structlog

from edge_agent.adaptation.polling import polling
from edge_agent.config import EdgeConfig
from edge_agent.experiment.exchanging import carried_shares, exchange_by, is_made_again
from edge_agent.experiment.experiment import Experiment
from edge_agent.observability.metrics import SharingMetrics
from edge_agent.planning.profile_operations import FORWARD_SHARE
from edge_agent.planning.schedules import STRATEGIES, Layers, ScheduleAgain, bounds_of
from edge_agent.planning.schedules.layers import BITS_PER_BYTE
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.statistics import Statistics
from shared.events import Events
from shared.events.worker import Computed
from shared.placement import AGENT, Backward, Forward, Placement, Program, segments
from shared.training.held_state import changing_blocks
from shared.training.slices import learning_bytes

_log = structlog.get_logger(__name__)

TELLING_STEPS = 20
"""Number of steps of which the median counts: a step takes longer now and then, and the first ones always do."""


class SegmentTimes:
    """The latest seconds of each segment of this device's program. Used on the event loop."""

    def __init__(self, events: Events) -> None:
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=TELLING_STEPS))
        events.subscribe(Computed, self._note)

    def _note(self, event: Computed) -> None:
        self._seconds[event.segment].append(event.end_seconds - event.start_seconds)

    def forget(self) -> None:
        """Forget all, because what comes is of another run or placement."""
        self._seconds.clear()

    def of(self, segment: int) -> float | None:
        """Return the usual seconds of a segment; None before there were enough steps."""
        known = self._seconds.get(segment, ())
        return median(known) if len(known) == TELLING_STEPS else None


class MeasuredLayers:
    """The layers of one member, in one session. Used on the event loop."""

    def __init__(self, experiment: Experiment, program: Program, times: SegmentTimes, statistics: Statistics) -> None:
        """program: of this device in each step."""
        placement, chain = experiment.placement, experiment.chain
        assert experiment.config.member is not None, "a member exchanges"
        self._model = experiment.config.model.factory
        self._times, self._statistics = times, statistics
        self._parts = list(_parts(segments(program)[1]))
        self._blocks = len(placement.tiles_of(AGENT)[0].blocks)
        self._push, self._pull = carried_shares(experiment.config.member)
        self._owners = {block: placement.owner(block) for block in changing_blocks(chain) if block < self._blocks}
        self._bytes = {block: learning_bytes(chain.blocks[block]) for block in self._owners}
        self._names = [block.name for block in chain.blocks]
        self.ends = ends_of(self._owners, self._blocks)
        """Block at which each layer begins, and the end of the last; empty where nothing is exchanged."""

    def now(self) -> Layers | None:
        """Return the layers as they are now; None before enough is measured, and where there are none."""
        forward, backward = [0.0] * self._blocks, [0.0] * self._blocks
        for segment, parts in self._parts:
            if (seconds := self._times.of(segment)) is None:
                return None
            for kind, block, share in parts:
                (forward if kind is Forward else backward)[block] += share * seconds
        rates, trips = self._statistics.link_rates, self._statistics.link_trips
        up = {owner: rates.get((AGENT, owner)) for owner in self._owners.values()}
        down = {owner: rates.get((owner, AGENT)) for owner in self._owners.values()}
        ways = [trips.get((AGENT, owner)) for owner in up]
        runs = [range(*run) for run in pairwise(self.ends)]

        def carried(rates: dict[str, float | None], run: Iterable[int]) -> float:
            return sum(
                BITS_PER_BYTE * self._bytes[at] / (rates[self._owners[at]] or 1.0) for at in run if at in self._bytes
            )

        if not runs or None in (*up.values(), *down.values(), *ways):
            return None
        return Layers(
            model=self._model,
            message_seconds=max(seconds for seconds in ways if seconds is not None),
            names=tuple("+".join(self._names[block] for block in run) for run in runs),
            bytes=tuple(sum(self._bytes.get(block, 0) for block in run) for run in runs),
            pull_seconds=tuple(self._pull * carried(down, run) for run in runs),
            forward_seconds=tuple(sum(forward[block] for block in run) for run in runs),
            backward_seconds=tuple(sum(backward[block] for block in run) for run in runs),
            push_seconds=tuple(self._push * carried(up, run) for run in runs),
        )


def ends_of(changing: Iterable[int], blocks: int) -> tuple[int, ...]:
    """Return where layers end: a block without parameters that change belongs to the one before, the first ones to the next."""
    _, *others = (*sorted(changing), blocks)
    return (0, *others) if others else ()


def _parts(of_program: Sequence[Program]) -> Iterable[tuple[int, list[tuple[type, int, float]]]]:
    """Return for each segment that computes blocks: forward or backward, the block, and its part of the segment's seconds."""
    weights: dict[type, float] = {Forward: FORWARD_SHARE, Backward: 1.0 - FORWARD_SHARE}
    for number, segment in enumerate(of_program):
        each = [
            (type(one), block) for one in segment if isinstance(one, Forward | Backward) for block in one.stage.blocks
        ]
        whole = sum(weights[kind] for kind, _ in each)
        if each:
            yield number, [(kind, block, weights[kind] / whole) for kind, block in each]


def exchange_bounds(placement: Placement, ends: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the partitions of layers that a placement has in force, to pull and to push. ends: see `MeasuredLayers`."""
    assert placement.exchange is not None, "a schedule with a barrier has an exchange"
    pull, push = (bounds_of(each) for each in (placement.exchange.pull, placement.exchange.push))
    of_pull, of_push = (tuple(ends.index(end) for end in each if end in ends) for each in (pull, push))
    return of_pull, of_push


class Rescheduling:
    """The schedules of one agent that is a member. Used on its event loop."""

    def __init__(self, strategy: str, events: Events, statistics: Statistics, metrics: SharingMetrics) -> None:
        self._strategy = strategy
        self._times = SegmentTimes(events)
        self._statistics = statistics
        self._metrics = metrics

    @asynccontextmanager
    async def running(self, deployer: Deployer, program: Program) -> AsyncIterator[None]:
        """Make schedules for this deployer while the body runs. program: of this device in each step."""
        self._times.forget()
        experiment = deployer.experiment
        layers = MeasuredLayers(experiment, program, self._times, self._statistics)
        again = ScheduleAgain(STRATEGIES[self._strategy], experiment.loader.steps_per_epoch)
        async with polling(partial(self._look, deployer, layers, again)):
            yield

    async def _look(self, deployer: Deployer, measured: MeasuredLayers, again: ScheduleAgain, _seconds: float) -> None:
        layers, step, before = measured.now(), self._statistics.steps, deployer.placement
        if layers is None or not again.is_due(layers, step):
            return
        started = time.monotonic()
        schedule = await asyncio.to_thread(again.made, layers, step, exchange_bounds(before, measured.ends))
        self._metrics.scheduling_seconds.observe(time.monotonic() - started)
        if schedule is None or deployer.placement is not before:
            return
        exchange = exchange_by(schedule, measured.ends, before.blocks)
        _log.info(
            "another schedule",
            strategy=self._strategy,
            step=step,
            pulled=[list(segment) for segment in exchange.pull],
            pushed=[list(segment) for segment in exchange.push],
            seconds_per_step=round(schedule.step_seconds, 4),
        )
        deployer.want(replace(before, exchange=exchange), Chooser.EXCHANGE)
        self._times.forget()


def make_rescheduling(
    config: EdgeConfig, events: Events, statistics: Statistics, metrics: SharingMetrics
) -> Rescheduling | None:
    """Return what makes the schedules of a run again; None where its schedule stays."""
    if (group := config.member) is None or not is_made_again(group):
        return None
    return Rescheduling(group.schedule, events, statistics, metrics)
