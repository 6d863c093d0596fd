"""What the engine believes: the rates of the link now and over the last minute, and the speed of each candidate over it.

Rates are noisy and the pipeline smooths them itself, so they are smoothed as it does before a speed is made of them. Speeds are
averaged then, not rates: the mean of what a rate allows is not what the mean rate allows. And where a deployment was tried,
what it really did corrects the model. Decides nothing.
"""

import math

import numpy as np

from shared.planning.cost import PhaseSeconds, StepWork, steady_seconds
from shared.planning.measurements import Floats, Ints
from shared.planning.rates import Rates

LEAST_RATE = 1000.0
"""Bits per second that a dead link is taken for, so that deployments can still be told apart."""

MOST_MEMORY_SECONDS = 5.0
"""Longest over which the rates of now are smoothed. A pipeline smooths over about half of what it holds in flight."""

MODEL_STEPS = 20.0
"""Weight of the model, in steps, where its speed is held against the steps that were done."""

COMPUTE_WEIGHT = 0.2
"""The weight of the newest measurement of T1 and T3 in their means."""


class Mean:
    """A mean over time that forgets with a time constant, and is a plain mean until that has passed."""

    def __init__(self) -> None:
        self._weight = 0.0
        self.value: Floats = np.empty(0)

    def add(self, seconds: float, time_constant_seconds: float, value: Floats) -> None:
        """Take in what held for the last `seconds`."""
        decay = math.exp(-seconds / time_constant_seconds)
        self._weight = self._weight * decay + 1.0 - decay
        self.value = self.value + (1.0 - decay) / self._weight * (value - self.value) if len(self.value) else value


class Estimates:
    """Beliefs over n candidates. `now`, `mean`, `usual`, `speeds` and `mean_speeds` exist once something was observed."""

    now: Rates
    mean: Rates
    usual: Rates
    """Over the whole memory, for what a dip of the link must not decide."""
    speeds: Floats
    """Steps per second of each candidate at the rates of now, shape (n,)."""
    mean_speeds: Floats
    """Over the last minute, shape (n,)."""

    def __init__(self, window_seconds: float, memory_seconds: float, round_trip_seconds: float) -> None:
        """round_trip_seconds: what a way there and back is taken for until one is measured."""
        self._window_seconds, self._memory_seconds = window_seconds, memory_seconds
        self._round_trip_seconds = round_trip_seconds
        self._edge_factor = self._cloud_factor = 1.0
        self._rates_now, self._rates_mean, self._rates_usual = Mean(), Mean(), Mean()
        self._modelled_steps: dict[tuple[int, int, int], float] = {}
        self._done_steps: dict[tuple[int, int, int], float] = {}

    def consider(self, work: StepWork, staleness: Ints, current: int) -> None:
        """Estimate these candidates from now on; what is known of link, devices and deployments stays.

        staleness: K of each, shape (n,).
        """
        self._work = work
        self._staleness, self._is_serial = staleness, staleness == 0
        self._keys = list(zip(work.cuts.tolist(), work.bits.tolist(), staleness.tolist(), strict=True))
        self._speeds_mean = Mean()
        if len(self._rates_now.value):
            self._derive(self._window_seconds, current)

    def note_link(
        self, seconds: float, uplink: float, downlink: float, round_trip_seconds: float | None, current: int
    ) -> None:
        """Take in what the link was for the last `seconds`: its mean rates, and its round trip where that was measured.

        current: today's candidate, whose pipeline does the smoothing.
        """
        memory_seconds = MOST_MEMORY_SECONDS
        if len(self._speeds_mean.value):
            memory_seconds = min(memory_seconds, float((self._staleness + 1)[current] / self.mean_speeds[current]) / 2)
        if round_trip_seconds is not None:
            self._round_trip_seconds = round_trip_seconds
        observed = np.array([max(uplink, LEAST_RATE), max(downlink, LEAST_RATE), self._round_trip_seconds])
        self._rates_now.add(seconds, memory_seconds, observed)
        self._rates_mean.add(seconds, self._window_seconds, observed)
        self._rates_usual.add(seconds, self._memory_seconds, observed)
        self._derive(seconds, current)

    def note_compute(self, edge_seconds: float | None, cloud_seconds: float | None, current: int) -> None:
        """Scale the profile's compute times to T1 and T3 as measured today; nothing to learn where the profile has 0."""
        profiled_edge, profiled_cloud = (
            float(column[current])
            for column in (self._work.computing(serial=self._is_serial), self._work.cloud_seconds)
        )
        if edge_seconds is not None and profiled_edge > 0.0:
            self._edge_factor += COMPUTE_WEIGHT * (edge_seconds / profiled_edge - self._edge_factor)
        if cloud_seconds is not None and profiled_cloud > 0.0:
            self._cloud_factor += COMPUTE_WEIGHT * (cloud_seconds / profiled_cloud - self._cloud_factor)

    def phases(self, rates: Rates) -> PhaseSeconds:
        """Phase times of all candidates at some rates, on the devices as they are today."""
        return self._work.phases(rates, self._edge_factor, self._cloud_factor, serial=self._is_serial)

    def note_steps(self, seconds: float, done_steps: int, current: int) -> None:
        """Hold the model against the steps done in the last `seconds` of even running, none of them spent on a change."""
        key = self._keys[current]
        self._modelled_steps[key] = self._modelled_steps.get(key, MODEL_STEPS) + seconds * float(
            self._modelled[current]
        )
        self._done_steps[key] = self._done_steps.get(key, MODEL_STEPS) + done_steps

    def _derive(self, seconds: float, current: int) -> None:
        self.now, self.mean = Rates(*self._rates_now.value.tolist()), Rates(*self._rates_mean.value.tolist())
        self.usual = Rates(*self._rates_usual.value.tolist())
        self._modelled = 1.0 / steady_seconds(self.phases(self.now), self._staleness)
        self._speeds_mean.add(seconds, self._window_seconds, self._modelled)
        corrections = self._corrections(current)
        self.speeds = self._modelled * corrections
        self.mean_speeds = self._speeds_mean.value * corrections

    def _corrections(self, current: int) -> Floats:
        """What was done over what was modelled, shape (n,).

        Where a candidate was never tried, it is expected to miss the model by what it shares with today's, but not to beat it.
        """
        known = {key: self._done_steps[key] / modelled for key, modelled in self._modelled_steps.items()}
        shared = self._shared_shortfall(current, known.get(self._keys[current], 1.0))
        return np.array([known.get(key, part) for key, part in zip(self._keys, shared.tolist(), strict=True)])

    def _shared_shortfall(self, current: int, done_part: float) -> Floats:
        """Part of its modelled speed that each candidate keeps when today's does `done_part` of its own, shape (n,).

        What is missing is put where it shows today. Where the link bounds a step, that direction is slower, for all that use
        it. Else each batch may be on its way for longer, which is shared once for K + 1 steps by all that go this way; or the
        phase that bounds a step may be slower. Of two explanations each candidate has the one that it suffers less from:
        to be wrong in its favour is found out by trying, to be wrong against it never is.
        """
        phases, windows = self.phases(self.now), self._staleness + 1
        if done_part >= 1.0:
            return np.ones(len(self._keys))
        slower = 1.0 / done_part
        today = PhaseSeconds(*(column[current : current + 1] for column in phases))
        longest_seconds = float(today.longest()[0])
        step_seconds = float(steady_seconds(today, int(self._staleness[current]))[0])
        delay_seconds = slower * step_seconds * float(windows[current]) - float(today.total()[0])
        delayed = phases._replace(round_trip=phases.round_trip + delay_seconds * self._work.round_trips)
        edge_slower = phases._replace(edge=phases.edge * slower, busy=phases.busy * slower)
        if not self._work.round_trips[current]:
            explanations = [edge_slower]
        elif step_seconds > longest_seconds:
            explanations = [delayed]
        elif float(today.uplink[0]) == longest_seconds:
            explanations = [phases._replace(uplink=phases.uplink * slower)]
        elif float(today.downlink[0]) == longest_seconds:
            explanations = [phases._replace(downlink=phases.downlink * slower)]
        elif float(today.cloud[0]) == longest_seconds:
            explanations = [phases._replace(cloud=phases.cloud * slower), delayed]
        else:
            explanations = [edge_slower, delayed]
        slowed_seconds = np.min([steady_seconds(each, self._staleness) for each in explanations], axis=0)
        ratio: Floats = steady_seconds(phases, self._staleness) / slowed_seconds
        return ratio
