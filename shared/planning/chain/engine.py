"""The decision engine of a chain: it is told what was measured, and says when blocks should move. It has no clock.

It has the rules of the engine of two workers (`shared/planning/engine`), with its margin, dwell, horizon and account, and its
interface. A chain has too many layouts to weigh them all the time, so the search names the best one, and the engine weighs
that, today's, and home. K stays as it is.

A device that has become slower or quicker (device_factors.py) is no oscillation of a link, which the account guards against.
So the layout that is best for it is gone to without the account, and is home from then on.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from shared.errors import PlanError
from shared.planning.chain.device_factors import DeviceFactors
from shared.planning.cost import Conditions, Loads, bits_between, conditions_of, loads_of, moving_seconds
from shared.planning.engine.beliefs import LEAST_RATE, MODEL_STEPS
from shared.planning.engine.config import EngineConfig
from shared.planning.engine.decision import Decision, Observation, Reason
from shared.planning.engine.horizon import Horizon
from shared.planning.engine.ledger import Ledger
from shared.planning.families.question import Question
from shared.planning.layout import Layout
from shared.planning.measurements import Floats
from shared.planning.profile import MeasuredLink, Profile, WorkerProfile
from shared.planning.search import best
from shared.planning.space import SearchSpace

RATE_SECONDS = 20.0
"""Time of the links that counts. A mean that forgets slowly would remember a drop to a tenth for minutes."""

_HOME, _TODAY = 0, 1
"""The contenders of the ledger."""


class ChainEngine:
    """The decisions of one run. Each proposal wants `note_deployed` for an answer; until then the engine only listens."""

    def __init__(
        self,
        profile: Profile,
        space: SearchSpace,
        layout: Layout,
        config: EngineConfig | None = None,
        total_steps: float = math.inf,
    ) -> None:
        """total_steps: after which the run ends. PlanError where today's was not measured, and where nothing may be chosen."""
        self.layout = layout
        self._profile = profile
        self._config = config or EngineConfig()
        self._total_steps = total_steps
        self._places = {name: place for place, name in enumerate(profile.names)}
        self._devices = DeviceFactors(len(profile.workers))
        self._devices_today = profile
        """The profile with the factors of the devices: computing alone is slower, not encoding."""
        self._measured = conditions_of(profile)
        self._mean_rates = self._measured.rates
        self._recent: deque[tuple[float, Floats]] = deque()
        """Seconds, and the rates in them; see `Conditions`."""
        self._loads: dict[Layout, Loads] = {}
        self._horizon = Horizon(self._config.margin, self._config.horizon_beta)
        self._ledger = Ledger(self._config.limits, _HOME, 2)
        self.home = layout
        self._seconds: float | None = None
        self._step = 0
        self._changed_seconds = -math.inf
        self._device_changed = False
        self._proposal: Decision | None = None
        self._modelled_steps: dict[Layout, float] = {}
        self._done_steps: dict[Layout, float] = {}
        if not self.knows(layout):
            raise PlanError(f"the chain has nothing measured for {layout}, with which the run begins; measure it first")
        self.constrain(space)

    def constrain(self, space: SearchSpace) -> None:
        """Choose from another space from now on, at today's K. PlanError where that leaves nothing, and changes nothing."""
        best(Question(self._devices_today, replace(space, staleness=self.layout.staleness)), self._today())
        self._space = space

    def knows(self, layout: Layout) -> bool:
        """Tell whether everything of a layout was measured."""
        return bool(self._loads_of(layout).measured()[0])

    @property
    def remaining_steps(self) -> float:
        """Return the steps until the run ends."""
        return max(0.0, self._total_steps - self._step)

    @property
    def predicted_seconds(self) -> float:
        """Predict the seconds a step of today's layout, by what is believed of devices and links."""
        return float(self._loads_of(self.layout).seconds(self._today())[0])

    @property
    def prediction_ratios(self) -> dict[str, float]:
        """Return what each worker took in its last 20 steps over what was expected then; 0 before so many."""
        return dict(zip(self._profile.names, self._devices.off.tolist(), strict=True))

    @property
    def profile_today(self) -> Profile:
        """Return the profile as it is now: devices with their factors, links with the mean rates of the last RATE_SECONDS."""
        return self._over_todays_links(self._devices_today)

    @property
    def runs(self) -> dict[str, tuple[int, int]]:
        """Return the blocks [first, stop) of each worker that has any, by its name."""
        return {tile.worker: (tile.first, tile.stop) for tile in self.layout.tiles}

    @property
    def misfits(self) -> tuple[str, ...]:
        """Name the workers that one factor does not bring right, by name: `measured_again` wants new times of them."""
        return tuple(self._profile.names[place] for place in sorted(self._devices.misfits))

    def measured_again(self, worker: WorkerProfile) -> None:
        """Have these times of a worker, taken today, in the place of the file's."""
        self._profile = self._profile.with_worker(worker)
        self._devices.measured_again(self._places[worker.name])
        self._note_other_devices()

    def keep_factor(self, name: str) -> None:
        """A worker could not be measured again: the factor that it has is to do until it is off once more."""
        self._devices.misfits.discard(self._places[name])

    def note_standstill(self, seconds: float) -> None:
        """Training stood still until now, as for an evaluation: that time does not count."""
        if self._seconds is not None:
            self._seconds = seconds

    def note_deployed(self, seconds: float, layout: Layout) -> None:
        """Training goes on with `layout`: the proposed one, the old one where the move failed, or an operator's."""
        proposal, self._proposal = self._proposal, None
        self._changed_seconds = seconds
        if layout == self.layout:
            self._ledger.forget()
            return
        was_proposed = proposal is not None and proposal.layout == layout
        self.layout = layout
        self._devices.begin()
        if proposal is None or not was_proposed or proposal.reason is not Reason.LINK:
            self._make_home()
            self._device_changed = False

    def observe(self, seen: Observation) -> Decision | None:
        """Take in what was seen; a move to make, or None."""
        seconds, step = seen.seconds, seen.step
        if self._seconds is None or step < self._step:
            self._horizon.begin(step) if self._seconds is None else self._horizon.go_back(step)
            self._seconds, self._step = seconds, step
            return None
        since, done_steps = seconds - self._seconds, step - self._step
        if since <= 0.0:
            return None
        self._seconds, self._step = seconds, step
        measured = [float(self._profile.worker(name).replayed[run]) for name, run in self.runs.items()]
        if self._devices.note(done_steps, [seen.work.get(name) for name in self.runs], measured):
            self._note_other_devices()
        self._note_rates(since, seen.rates)
        is_settled = seconds - self._changed_seconds >= self._config.dwell_seconds and self._proposal is None
        self._count(since, done_steps, is_settled=is_settled)
        question = Question(self._devices_today, replace(self._space, staleness=self.layout.staleness))
        leading = best(question, self._today()).layout
        speeds = np.array([self._speed(self.layout), self._speed(leading)])
        self._horizon.note(step, speeds, np.ones(2, dtype=np.bool_), 0)
        if not is_settled:
            return None
        if not self._is_allowed():
            self._propose(leading, Reason.PIN)
        else:
            self._choose(leading)
        return self._proposal

    def _is_allowed(self) -> bool:
        return self._space.cuts in (None, self.layout.cuts) and set(self.layout.bits) <= set(self._space.bits)

    def _note_other_devices(self) -> None:
        """Forget what was done until now: it was done by other devices than the model has."""
        factors = self._devices.factors.tolist()
        slowed = [worker.slowed(factor) for worker, factor in zip(self._profile.workers, factors, strict=True)]
        self._devices_today = replace(self._profile, workers=tuple(slowed))
        self._loads.clear()
        self._device_changed = True
        self._modelled_steps.clear()
        self._done_steps.clear()

    def _choose(self, leading: Layout) -> None:
        """Keep what has proved itself, go home when that pays or must be, or go to the best where it pays."""
        remaining = self.remaining_steps if math.isfinite(self._total_steps) else float(self._step)
        available = self._ledger.available_steps(remaining)
        home_speed = self._speed(self.home)
        if self.layout != self.home:
            if self._ledger.gains(np.zeros(2), remaining)[_TODAY] > 0.0:
                self._make_home()
            elif home_speed > self._speed(self.layout):
                back = self._way_seconds(self.layout, self.home)
                is_short = available < 2.0 * home_speed * back and self._ledger.regrets(_TODAY, back)
                if is_short or self._pays(self.home, back, 0.0):
                    self._propose(self.home, Reason.LINK)
                return
        if leading == self.layout or not self._horizon.is_behind:
            # What the devices are now, today's layout is right for, too.
            self._device_changed &= self._horizon.is_behind
            return
        there = self._way_seconds(self.layout, leading)
        if not self._pays(leading, there, self._config.margin):
            return
        if self._device_changed:
            self._propose(leading, Reason.DEVICE)
            return
        back = self._way_seconds(leading, self.home)
        if available >= home_speed * (there + 2.0 * back + self._config.dwell_seconds):
            self._propose(leading, Reason.LINK)

    def _pays(self, layout: Layout, way_seconds: float, margin: float) -> bool:
        """Tell whether the steps of the horizon take less with it, the way there included (paper 000, Eq. 15)."""
        steps = self._horizon.steps(self._step, self._total_steps)
        staying = steps / self._speed(self.layout)
        return steps / self._speed(layout) + way_seconds < (1.0 - margin) * staying

    def _propose(self, layout: Layout, reason: Reason) -> None:
        self._proposal = Decision(
            layout,
            1.0 / self._speed(layout),
            1.0 / self._speed(self.layout),
            self._moving_seconds(self.layout, layout),
            math.inf,
            reason,
        )

    def _make_home(self) -> None:
        self.home = self.layout
        self._ledger.set_home(_HOME)

    def _count(self, seconds: float, done_steps: int, *, is_settled: bool) -> None:
        """Hold the model against what was done, and enter it into the account."""
        _, rates = self._recent[-1]
        at = self._conditions(rates)
        modelled = [seconds / float(self._loads_of(one).seconds(at)[0]) for one in (self.home, self.layout)]
        if is_settled and done_steps:
            self._modelled_steps[self.layout] = self._modelled_steps.get(self.layout, MODEL_STEPS) + modelled[1]
            self._done_steps[self.layout] = self._done_steps.get(self.layout, MODEL_STEPS) + done_steps
        each = zip((self.home, self.layout), modelled, strict=True)
        speeds = np.array([steps / seconds * self._correction(one) for one, steps in each])
        is_at_home = self._proposal is None and self.layout == self.home
        self._ledger.record(seconds, speeds, done_steps, is_at_home=is_at_home)

    def _speed(self, layout: Layout) -> float:
        """Return the steps a second over the last RATE_SECONDS: the model's, as far as what was done bears it out.

        The mean of what the rates of each time allowed, which is not what their mean would.
        """
        weights = np.array([seconds for seconds, _ in self._recent])
        at = self._conditions(np.stack([rates for _, rates in self._recent]))
        steps = weights / self._loads_of(layout).seconds(at)[:, 0]
        return self._correction(layout) * float(steps.sum() / weights.sum())

    def _correction(self, layout: Layout) -> float:
        """Return what was done over what was modelled; one never tried is not expected to do better than today's."""
        known = {one: self._done_steps[one] / modelled for one, modelled in self._modelled_steps.items()}
        return known.get(layout, min(1.0, known.get(self.layout, 1.0)))

    def _loads_of(self, layout: Layout) -> Loads:
        if layout not in self._loads:
            self._loads[layout] = loads_of(self._devices_today, [layout])
        return self._loads[layout]

    def _today(self) -> Conditions:
        """Return the mean rates of the last RATE_SECONDS, and the devices as they are."""
        return self._conditions(self._mean_rates)

    def _conditions(self, rates: Floats) -> Conditions:
        trips = np.broadcast_to(self._measured.trips, rates.shape)
        return Conditions(rates, trips, np.broadcast_to(self._measured.factors, rates.shape[:-1]))

    def _note_rates(self, seconds: float, rates: Mapping[tuple[str, str], float | None]) -> None:
        newest = (self._recent[-1][1] if self._recent else self._measured.rates).copy()
        for (sender, receiver), rate in rates.items():
            if rate is not None:
                newest[self._places[sender], self._places[receiver]] = max(rate, LEAST_RATE)
        self._recent.append((seconds, newest))
        while sum(one for one, _ in self._recent) - self._recent[0][0] >= RATE_SECONDS:
            self._recent.popleft()
        weights = [one for one, _ in self._recent]
        self._mean_rates = np.average([one for _, one in self._recent], axis=0, weights=weights)

    def _moving_seconds(self, start: Layout, end: Layout) -> float:
        """Return the blocks' way: all links carry at the same time."""
        moved = {direction: np.array([bits]) for direction, bits in bits_between(self._profile, start, end).items()}
        return float(moving_seconds(moved, conditions_of(self._over_todays_links(self._profile)))[0])

    def _over_todays_links(self, profile: Profile) -> Profile:
        """Return a profile with the mean rates of its neighbours, which blocks between others pass, too."""
        rates, places = self._mean_rates, self._places
        return profile.with_links(
            {
                (near, far): MeasuredLink(
                    float(rates[places[near], places[far]]),
                    float(rates[places[far], places[near]]),
                    self._profile.round_trip_seconds(near, far),
                )
                for near, far in pairwise(self._profile.names)
            }
        )

    def _way_seconds(self, start: Layout, end: Layout) -> float:
        """Return the seconds until training goes on as fast as it will: the blocks have moved, and the pipeline is full."""
        if start == end:
            return 0.0
        return self._moving_seconds(start, end) + float(self._loads_of(end).at(self._today()).filling()[0])
