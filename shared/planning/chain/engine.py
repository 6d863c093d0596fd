"""The decision engine of a chain: it gets measurements, and says when blocks should move. It has no clock.

It has the rules of the engine of two workers (`shared/planning/engine`), with its margin, dwell, horizon and account.
The choice differs: a chain has too many partitions to weigh all the time. So the search names the best one, and the
engine weighs that one, today's, and home. K does not change.

A device that has become slower or quicker (device_factors.py) is no oscillation of a link, which the account guards against.
So the engine moves to the partition that is best for it without the account, and calls it home from then on.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from shared.errors import PlanError
from shared.planning.chain.costs import ChainCosts, Partition, PartitionCost
from shared.planning.chain.device_factors import DeviceFactors
from shared.planning.chain.search import best_partition
from shared.planning.cost.conditions import conditions_of
from shared.planning.cost.switching import moved_bits, moving_seconds, runs_of
from shared.planning.engine.beliefs import LEAST_RATE, MODEL_STEPS
from shared.planning.engine.config import EngineConfig
from shared.planning.engine.horizon import Horizon
from shared.planning.engine.ledger import Ledger
from shared.planning.layout import stacked
from shared.planning.measurements import Floats
from shared.planning.profile import MeasuredLink, Profile, WorkerProfile
from shared.planning.rates import Rates

LinkRates = tuple[float | None, float | None]
"""Bits per second up and down; None if unknown."""

RATE_SECONDS = 20.0
"""Time over which the rates of links count. A mean that forgets slowly would remember a drop to a tenth for minutes."""

_HOME, _TODAY = 0, 1
"""The contenders of the ledger."""


class Reason(StrEnum):
    """The reason for a move of blocks."""

    DEVICE = "device"
    """A stage has become slower or quicker."""
    LINK = "link"
    """The links carry more or less than before."""
    PIN = "pin"
    """An operator fixes other cuts."""
    WORKER = "worker"
    """A trainer that was left out is back."""


@dataclass(frozen=True)
class ChainDecision:
    """A proposal to move blocks."""

    partition: Partition
    reason: Reason
    seconds_per_step: float
    """Predicted with it."""
    staying_seconds_per_step: float
    """Predicted without it."""
    moving_seconds: float
    """Predicted time of the blocks on the links."""


@dataclass(frozen=True)
class _Second:
    """The time between two looks."""

    seconds: float
    rates: Floats
    """Rates of each link, up and down, shape (links, 2)."""
    costs: ChainCosts
    """Costs at these rates, on the present devices."""


class ChainEngine:
    """The decisions of one run. Each proposal needs `note_deployed` as its answer. Until then the engine only listens."""

    def __init__(
        self,
        chain: Profile,
        bits: Sequence[int],
        staleness: int,
        partition: Partition,
        config: EngineConfig | None = None,
        total_steps: float = math.inf,
    ) -> None:
        """bits: widths to choose from. total_steps: after which the run ends. PlanError if today's partition was not
        measured."""
        self.partition = partition
        self._chain, self._bits, self._staleness = chain, tuple(bits), staleness
        self._config = config or EngineConfig()
        self._total_steps = total_steps
        self._devices = DeviceFactors(len(chain.workers))
        self._rates: Floats = np.array([[link.uplink, link.downlink] for link in self._hops(chain)]).reshape(-1, 2)
        self._recent: deque[_Second] = deque()
        self._horizon = Horizon(self._config.margin, self._config.horizon_beta)
        self._ledger = Ledger(self._config.limits, _HOME, 2)
        self._home = partition
        self._pinned_cuts: tuple[int, ...] | None = None
        self._pinned_bits: int | None = None
        self._seconds: float | None = None
        self._step = 0
        self._changed_seconds = -math.inf
        self._device_changed = False
        self._proposal: ChainDecision | None = None
        self._modelled_steps: dict[Partition, float] = {}
        self._done_steps: dict[Partition, float] = {}
        if not self._seconds_of(partition, self._today()) < math.inf:
            raise PlanError(
                f"the chain has nothing measured for {partition}, with which the run begins; measure it first"
            )
        self._best(self._today())

    @property
    def home(self) -> Partition:
        """Return the partition against which losses are counted: the first one, or one that has proved better for good."""
        return self._home

    def knows(self, partition: Partition) -> bool:
        """Tell whether all of a partition was measured."""
        costs = ChainCosts(replace(self._chain, min_bits=None), (*self._bits, *partition.bits))
        return self._seconds_of(partition, costs) < math.inf

    @property
    def remaining_steps(self) -> float:
        """Return the steps until the run ends."""
        return max(0.0, self._total_steps - self._step)

    @property
    def predicted_seconds(self) -> float:
        """Return the seconds of a step of today's partition, as believed of devices and links."""
        return self._seconds_of(self.partition, self._today())

    @property
    def prediction_ratios(self) -> tuple[float, ...]:
        """Return by stage its seconds in the last 20 steps over the believed ones; 0 before there were as many steps."""
        return tuple(self._devices.off.tolist())

    @property
    def chain_today(self) -> Profile:
        """Return the present chain: devices with their factors, links with the mean rates of the last RATE_SECONDS."""
        return self._chain_at(self._rates)

    @property
    def runs(self) -> dict[str, tuple[int, int]]:
        """Return the blocks [first, stop) of each stage, by its name."""
        return dict(zip(self._chain.names, _runs(self.partition, len(self._chain)), strict=True))

    @property
    def misfits(self) -> tuple[str, ...]:
        """List the stages for which one factor does not fit. `measured_again` gives new times for them."""
        return tuple(self._chain.names[stage] for stage in sorted(self._devices.misfits))

    def measured_again(self, worker: WorkerProfile) -> None:
        """Replace the file's times of a worker by these, which were measured today."""
        self._chain = self._chain.with_worker(worker)
        self._devices.measured_again(self._place(worker.name))
        self._note_other_devices()

    def keep_factor(self, name: str) -> None:
        """Keep the factor of a stage that could not be measured again, until it is off once more."""
        self._devices.misfits.discard(self._place(name))

    def _place(self, name: str) -> int:
        return self._chain.names.index(name)

    def pin(self, cuts: tuple[int, ...] | None = None, bits: int | None = None) -> None:
        """Fix these cuts and this width from now on; None lets the engine choose. PlanError if that leaves nothing."""
        before = self._pinned_cuts, self._pinned_bits
        self._pinned_cuts, self._pinned_bits = cuts, bits
        try:
            self._best(self._today())
        except PlanError:
            self._pinned_cuts, self._pinned_bits = before
            raise
        self._count_again()

    def note_standstill(self, seconds: float) -> None:
        """Skip the time until now, in which training stood still, for example for an evaluation."""
        if self._seconds is not None:
            self._seconds = seconds

    def note_deployed(self, seconds: float, partition: Partition) -> None:
        """Note that training continues with `partition`: the proposed one, the old one after a failed move, or an
        operator's."""
        proposal, self._proposal = self._proposal, None
        self._changed_seconds = seconds
        if partition == self.partition:
            self._ledger.forget()
            return
        was_proposed = proposal is not None and proposal.partition == partition
        self.partition = partition
        self._devices.begin()
        if proposal is None or not was_proposed or proposal.reason is not Reason.LINK:
            self._make_home()
            self._device_changed = False
        self._count_again()

    def observe(
        self, seconds: float, step: int, rates: Sequence[LinkRates], stage_seconds: Sequence[float | None]
    ) -> ChainDecision | None:
        """Take in the measurements since the last observation. Returns a move to make, or None.

        seconds: any clock that never goes back; call about once a second. step: batches settled so far. rates: of each link.
        stage_seconds: means since, by stage, without encoding; None if nothing was reported.
        """
        if self._seconds is None or step < self._step:
            self._horizon.begin(step) if self._seconds is None else self._horizon.go_back(step)
            self._seconds, self._step = seconds, step
            return None
        since, done_steps = seconds - self._seconds, step - self._step
        if since <= 0.0:
            return None
        self._seconds, self._step = seconds, step
        measured = [
            float(worker.replayed[run])
            for worker, run in zip(self._chain.workers, _runs(self.partition, len(self._chain)), strict=True)
        ]
        if self._devices.note(done_steps, stage_seconds, measured):
            self._note_other_devices()
        self._note_rates(since, rates)
        is_settled = seconds - self._changed_seconds >= self._config.dwell_seconds and self._proposal is None
        self._count(since, done_steps, is_settled=is_settled)
        best = self._best(self._today())
        speeds = np.array([self._speed(self.partition), self._speed(best)])
        self._horizon.note(step, speeds, np.ones(2, dtype=np.bool_), 0)
        if not is_settled:
            return None
        if not self._is_as_pinned():
            self._propose(best, Reason.PIN)
        else:
            self._choose(best)
        return self._proposal

    def _note_other_devices(self) -> None:
        """Forget what earlier devices did: it says nothing of the present ones."""
        self._device_changed = True
        self._modelled_steps.clear()
        self._done_steps.clear()
        self._count_again()

    def _choose(self, best: Partition) -> None:
        """Stay with a partition that has proved itself, go home when that pays or is necessary, or go to the best if it
        pays."""
        remaining = max(0.0, self._total_steps - self._step) if math.isfinite(self._total_steps) else float(self._step)
        available = self._ledger.available_steps(remaining)
        home_speed = self._speed(self._home)
        if self.partition != self._home:
            if self._ledger.gains(np.zeros(2), remaining)[_TODAY] > 0.0:
                self._make_home()
            elif home_speed > self._speed(self.partition):
                back = self._way_seconds(self.partition, self._home)
                is_short = available < 2.0 * home_speed * back and self._ledger.regrets(_TODAY, back)
                if is_short or self._pays(self._home, back, 0.0):
                    self._propose(self._home, Reason.LINK)
                return
        if best == self.partition or not self._horizon.is_behind:
            # Today's partition is then right for the present devices, too.
            self._device_changed &= self._horizon.is_behind
            return
        there = self._way_seconds(self.partition, best)
        if not self._pays(best, there, self._config.margin):
            return
        if self._device_changed:
            self._propose(best, Reason.DEVICE)
            return
        back = self._way_seconds(best, self._home)
        if available >= home_speed * (there + 2.0 * back + self._config.dwell_seconds):
            self._propose(best, Reason.LINK)

    def _pays(self, partition: Partition, way_seconds: float, margin: float) -> bool:
        """Tell whether the steps of the horizon take less with it, the move included (paper 000, Eq. 15)."""
        steps = self._horizon.steps(self._step, self._total_steps)
        staying = steps / self._speed(self.partition)
        return steps / self._speed(partition) + way_seconds < (1.0 - margin) * staying

    def _propose(self, partition: Partition, reason: Reason) -> None:
        self._proposal = ChainDecision(
            partition,
            reason,
            1.0 / self._speed(partition),
            1.0 / self._speed(self.partition),
            self._moving_seconds(self.partition, partition),
        )

    def _make_home(self) -> None:
        self._home = self.partition
        self._ledger.set_home(_HOME)

    def _count(self, seconds: float, done_steps: int, *, is_settled: bool) -> None:
        """Compare the model with the steps done, and enter the result into the account."""
        modelled = [seconds * self._speed_of(one, (self._recent[-1],)) for one in (self._home, self.partition)]
        if is_settled and done_steps:
            self._modelled_steps[self.partition] = self._modelled_steps.get(self.partition, MODEL_STEPS) + modelled[1]
            self._done_steps[self.partition] = self._done_steps.get(self.partition, MODEL_STEPS) + done_steps
        speeds = np.array(
            [
                steps / seconds * self._correction(one)
                for one, steps in zip((self._home, self.partition), modelled, strict=True)
            ]
        )
        is_at_home = self._proposal is None and self.partition == self._home
        self._ledger.record(seconds, speeds, done_steps, is_at_home=is_at_home)

    def _speed(self, partition: Partition) -> float:
        """Return the steps a second over the last RATE_SECONDS: the model's, corrected by the steps done."""
        return self._correction(partition) * self._speed_of(partition, self._recent)

    def _correction(self, partition: Partition) -> float:
        """Return done steps over modelled ones. A partition that was never tried is not expected to do better than today's."""
        known = {one: self._done_steps[one] / modelled for one, modelled in self._modelled_steps.items()}
        return known.get(partition, min(1.0, known.get(self.partition, 1.0)))

    def _speed_of(self, partition: Partition, recent: Iterable["_Second"]) -> float:
        """Return the model's speed: the mean of the speeds at the rates of each time, which is not the speed at their mean."""
        weighted = [(one.seconds, one.seconds / self._seconds_of(partition, one.costs)) for one in recent]
        return sum(steps for _, steps in weighted) / sum(seconds for seconds, _ in weighted)

    def _seconds_of(self, partition: Partition, costs: ChainCosts) -> float:
        return costs.of(partition).seconds_per_step(self._staleness)

    def _today(self) -> ChainCosts:
        """Return the costs at the mean rates of the last RATE_SECONDS, on the present devices."""
        return self._costs(self._rates)

    def _costs(self, rates: Floats) -> ChainCosts:
        """Return the costs at some rates, shape (links, 2), on the present devices."""
        return ChainCosts(self._chain_at(rates), self._widths())

    def _chain_at(self, rates: Floats) -> Profile:
        factors = self._devices.factors.tolist()
        workers = tuple(worker.slowed(factor) for worker, factor in zip(self._chain.workers, factors, strict=True))
        links = {
            hop: MeasuredLink(*astuple(link))
            for hop, link in zip(pairwise(self._chain.names), self._links(rates), strict=True)
        }
        return replace(self._chain, workers=workers).with_links(links)

    def _widths(self) -> tuple[int, ...]:
        """Return the widths that may be chosen or pinned, and today's, which need not be among them."""
        pinned = () if self._pinned_bits is None else (self._pinned_bits,)
        return tuple({*self._bits, *pinned, *self.partition.bits, *self._home.bits})

    def _best(self, costs: ChainCosts) -> Partition:
        """Return the best partition that may be chosen."""
        costs = costs.only(self._bits if self._pinned_bits is None else (self._pinned_bits,))
        return best_partition(costs if self._pinned_cuts is None else costs.at(self._pinned_cuts), self._staleness)

    def _is_as_pinned(self) -> bool:
        cuts, bits = self._pinned_cuts, self._pinned_bits
        return cuts in (None, self.partition.cuts) and (bits is None or set(self.partition.bits) <= {bits})

    @staticmethod
    def _hops(chain: Profile) -> list[Rates]:
        return [chain.rates(*hop) for hop in pairwise(chain.names)]

    def _links(self, rates: Floats) -> tuple[Rates, ...]:
        return tuple(
            Rates(up, down, link.round_trip_seconds)
            for (up, down), link in zip(rates.tolist(), self._hops(self._chain), strict=True)
        )

    def _note_rates(self, seconds: float, rates: Sequence[LinkRates]) -> None:
        known = np.array([[math.nan if rate is None else max(rate, LEAST_RATE) for rate in both] for both in rates])
        before = self._recent[-1].rates if self._recent else self._rates
        observed = np.where(np.isnan(known.reshape(-1, 2)), before, known.reshape(-1, 2))
        self._recent.append(_Second(seconds, observed, self._costs(observed)))
        while sum(one.seconds for one in self._recent) - self._recent[0].seconds >= RATE_SECONDS:
            self._recent.popleft()
        weights = [one.seconds for one in self._recent]
        self._rates = np.average([one.rates for one in self._recent], axis=0, weights=weights)

    def _count_again(self) -> None:
        """Cost the rates of the last seconds again, because devices or widths have changed."""
        self._recent = deque(replace(one, costs=self._costs(one.rates)) for one in self._recent)

    def _moving_seconds(self, start: Partition, end: Partition) -> float:
        """Return the time of the blocks on the links. All links carry at the same time."""
        before, after = (
            runs_of(self._chain, [stacked(self._chain, one.cuts, self._staleness, one.bits)]) for one in (start, end)
        )
        at = conditions_of(self._chain_at(self._rates))
        return float(moving_seconds(moved_bits(self._chain, before, after), at)[0])

    def _way_seconds(self, start: Partition, end: Partition) -> float:
        """Return the time until training is at full speed: the blocks have moved, and the pipeline is full."""
        if start == end:
            return 0.0
        cost: PartitionCost = self._today().of(end)
        return self._moving_seconds(start, end) + max(0.0, cost.total() - cost.longest())


def _runs(partition: Partition, blocks: int) -> list[tuple[int, int]]:
    return list(pairwise((0, *partition.cuts, blocks)))
