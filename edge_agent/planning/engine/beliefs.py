"""The engine's beliefs: links and devices now and over the last minute, and the speed of each layout over it.

Rates are noisy and the pipeline smooths them itself, so they are smoothed in the same way before a speed is computed.
Then speeds are averaged, not rates: the mean of the speeds at some rates is not the speed at their mean. A newcomer's mean
comes from the conditions of the last ten minutes, which are remembered. Where a layout was tried, its real steps correct the
model. Decides nothing.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from edge_agent.planning.cost import Conditions, Direction, Slower, conditions_of
from edge_agent.planning.engine.decision import Observation
from edge_agent.planning.engine.devices import Devices
from edge_agent.planning.engine.pool import Pool
from edge_agent.planning.layout import Layout
from edge_agent.planning.measurements import Floats
from edge_agent.planning.profile import Hop, Profile
from edge_agent.planning.rates import LEAST_RATE, in_series

MOST_MEMORY_SECONDS = 5.0
"""Longest time over which present rates are smoothed. A pipeline smooths over about half of the time that it holds in
flight."""

MODEL_STEPS = 20.0
"""Weight of the model, in steps, when its speed is compared with the steps done."""

REMEMBERED_SECONDS = 600.0
PIECE_SECONDS = 5.0
"""The conditions of the last ten minutes are remembered as means over pieces of this length."""


class Mean:
    """A mean over time that forgets with a time constant, and is a plain mean until that has passed."""

    def __init__(self) -> None:
        self._weight = 0.0
        self.value: Floats = np.empty(0)

    def add(self, seconds: float, time_constant_seconds: float, value: Floats) -> None:
        """Include the value that held for the last `seconds`."""
        decay = math.exp(-seconds / time_constant_seconds)
        self._weight = self._weight * decay + 1.0 - decay
        self.value = self.value + (1.0 - decay) / self._weight * (value - self.value) if len(self.value) else value


class Beliefs:
    """Beliefs over the n layouts of a pool. The attributes below exist after the first observation."""

    now: Conditions
    mean: Conditions
    usual: Conditions
    """Conditions over the whole memory, for decisions that a dip of a link must not change."""
    speeds: Floats
    """Steps per second of each layout at present rates, shape (n,)."""
    mean_speeds: Floats
    """Speeds over the last minute, shape (n,)."""

    def __init__(self, window_seconds: float, memory_seconds: float, profile: Profile) -> None:
        """profile: its rates are believed until links are observed."""
        self._window_seconds, self._memory_seconds = window_seconds, memory_seconds
        self.places = {name: place for place, name in enumerate(profile.names)}
        """Places of the workers in arrays, by name."""
        self._newest = conditions_of(profile)
        pairs = combinations(range(len(profile.names)), 2)
        self._unknown = {
            (near, far) for near, far in pairs if profile.link(profile.names[near], profile.names[far]) is None
        }
        """Links of which nothing was measured: each is the path through all workers between."""
        self.devices = Devices(len(profile.workers))
        self._now, self._mean, self._usual = Mean(), Mean(), Mean()
        self._pieces: deque[tuple[float, Floats]] = deque(maxlen=int(REMEMBERED_SECONDS / PIECE_SECONDS))
        """Seconds, and the mean of the conditions in them."""
        self._modelled_steps: dict[Layout, float] = {}
        self._done_steps: dict[Layout, float] = {}
        self._awaited: tuple[Layout, float] | None = None
        """Today's layout, with the modelled steps since its last real one."""

    def consider(self, pool: Pool, current: int) -> None:
        """Weigh these layouts from now on. Knowledge of links, devices and layouts stays."""
        self._pool = pool
        self._speeds_mean = Mean()
        if len(self._now.value):
            for seconds, piece in self._pieces:
                speeds = 1.0 / pool.loads.seconds(self._conditions(piece))
                self._speeds_mean.add(seconds, self._window_seconds, speeds)
            self._derive(current)

    def note_links(self, seconds: float, seen: Observation, current: int) -> None:
        """Include the links of the last `seconds`: their mean rates and round trips, as far as measured.

        current: today's layout, whose pipeline does the smoothing.
        """
        rates, trips = self._directions(seen.rates), self._directions(seen.trips)
        memory_seconds = MOST_MEMORY_SECONDS
        if len(self._speeds_mean.value):
            in_flight = float((self._pool.staleness + 1)[current] / self.mean_speeds[current])
            memory_seconds = min(memory_seconds, in_flight / 2)
        newest = replace(self._newest, rates=self._newest.rates.copy(), trips=self._newest.trips.copy())
        for direction, rate in rates.items():
            newest.rates[direction] = max(rate, LEAST_RATE)
        for (near, far), trip in trips.items():
            newest.trips[min(near, far), max(near, far)] = trip
        self._unknown -= {(min(direction), max(direction)) for direction in rates}
        for near, far in self._unknown:
            if far > near + 1:
                path = in_series([newest.link(*hop) for hop in pairwise(range(near, far + 1))])
                newest.rates[near, far], newest.rates[far, near] = path.uplink, path.downlink
                newest.trips[near, far] = path.round_trip_seconds
        self._newest = newest
        observed = np.concatenate([newest.rates.ravel(), newest.trips.ravel()])
        self._now.add(seconds, memory_seconds, observed)
        self._mean.add(seconds, self._window_seconds, observed)
        self._usual.add(seconds, self._memory_seconds, observed)
        self._remember(seconds)
        self._derive(current, seconds)

    def _directions(self, by_name: Mapping[Hop, float | None]) -> dict[Direction, float]:
        places, known = self.places, self.places.keys()
        return {
            (places[near], places[far]): one
            for (near, far), one in by_name.items()
            if one is not None and {near, far} <= known  # recovery may have put blocks on others
        }

    def note_work(self, seconds: float, steps: int, seen: Observation, current: int) -> set[int]:
        """Compare the workers' times with the expected ones. Returns those that have become other devices.

        All that was learnt of layouts until then was learnt of others, so it is forgotten.
        """
        work = {self.places[name]: taken for name, taken in seen.known_work.items()}
        expected = self._pool.work_seconds(current, {self.places[name] for name in seen.encoding})
        changed = self.devices.note(seconds, steps, work, expected)
        if changed:
            self.begin_again(current)
        return changed

    def begin_again(self, current: int) -> None:
        """Forget the steps that were done, because other devices do the next ones, and work out all speeds again."""
        self._modelled_steps.clear()
        self._done_steps.clear()
        self._awaited = None
        self.consider(self._pool, current)

    def over_time(self) -> list[Conditions]:
        """Return the conditions to plan for, the most important first.

        They are the present ones, the mean of the last minute, those of the whole memory, and links as slow and as quick as in
        a tenth of the last ten minutes.
        """
        rates = np.stack([self._conditions(piece).rates for _, piece in self._pieces])
        extremes = [replace(self.usual, rates=np.quantile(rates, part, axis=0)) for part in (0.1, 0.9)]
        return [self.now, self.mean, self.usual, *extremes]

    def note_steps(self, seconds: float, done_steps: int, current: int) -> None:
        """Compare the model with the steps done in the last `seconds` of even running, without time for a change."""
        key = self._pool[current]
        modelled = seconds * float(self._modelled[current])
        self._modelled_steps[key] = self._modelled_steps.get(key, MODEL_STEPS) + modelled
        self._done_steps[key] = self._done_steps.get(key, MODEL_STEPS) + done_steps
        before = self._awaited[1] if self._awaited is not None and self._awaited[0] == key else 0.0
        self._awaited = key, 0.0 if done_steps else before + modelled

    def forget_wait(self) -> None:
        """Take back what was noted of the time since the last step: it was not the layout that kept steps from being done."""
        if self._awaited is not None and self._awaited[0] in self._modelled_steps:
            self._modelled_steps[self._awaited[0]] -= self._awaited[1]
        self._awaited = None

    def _remember(self, seconds: float) -> None:
        """Add the present conditions to the newest piece, or begin another one."""
        if self._pieces and self._pieces[-1][0] < PIECE_SECONDS:
            before, mean = self._pieces.pop()
            total = before + seconds
            self._pieces.append((total, mean + seconds / total * (self._now.value - mean)))
        else:
            self._pieces.append((seconds, self._now.value))

    def _derive(self, current: int, seconds: float = 0.0) -> None:
        """Work out the speeds. seconds: those for which the present conditions held, if they are new."""
        self.now, self.mean, self.usual = (self._conditions(one.value) for one in (self._now, self._mean, self._usual))
        self._modelled = 1.0 / self._pool.loads.seconds(self.now)
        if seconds:
            self._speeds_mean.add(seconds, self._window_seconds, self._modelled)
        corrections = self._corrections(current)
        self.speeds = self._modelled * corrections
        self.mean_speeds = self._speeds_mean.value * corrections

    def _conditions(self, observed: Floats) -> Conditions:
        rates, trips = np.split(observed, 2)
        shape = self._newest.rates.shape
        return Conditions(rates.reshape(shape), trips.reshape(shape), self.devices.factors)

    def _corrections(self, current: int) -> Floats:
        """Return done steps over modelled ones, shape (n,).

        A layout that was never tried is expected to miss the model by the causes that it shares with today's, but not
        to exceed it.
        """
        known = {key: self._done_steps[key] / modelled for key, modelled in self._modelled_steps.items()}
        corrections = self._shared_shortfall(current, known.get(self._pool[current], 1.0))
        for key, part in known.items():
            if (row := self._pool.known(key)) is not None:
                corrections[row] = part
        return corrections

    def _shared_shortfall(self, current: int, done_part: float) -> Floats:
        """Return the part of its modelled speed that each layout keeps when today's does `done_part` of its own, shape (n,).

        The shortfall is put down to the part that limits today's layout. If a link bounds a step, that direction is
        slower, for all that use it. Otherwise each batch may be under way for longer, which all with this path share
        once for K + 1 steps; or the worker that bounds a step may be slower. Of two explanations each layout gets the
        one that harms it less: a trial corrects an error in its favour, but nothing ever corrects an error against it.
        """
        if done_part >= 1.0:
            return np.ones(len(self._pool))
        loads = self._pool.loads
        explanations = [loads.seconds(*explanation) for explanation in self._explanations(current, 1.0 / done_part)]
        ratio: Floats = loads.seconds(self.now) / np.min(explanations, axis=0)
        return ratio

    def _explanations(self, current: int, slower: float) -> list[tuple[Conditions, Slower]]:
        today = self._pool.loads.take([current])
        times = today.at(self.now)
        longest, total = float(times.longest[0]), float(times.total[0])
        windows = int(self._pool.staleness[current]) + 1
        step_seconds = max(longest, total / windows)
        links = {direction: halves for direction, halves in today.paths.halves.items() if halves[0] > 0.0}
        trips, delay_seconds = self.now.trips.copy(), slower * step_seconds * windows - total
        for direction, halves in links.items():
            trips[direction] += delay_seconds / len(links) * 2.0 / float(halves[0])
        delayed: list[tuple[Conditions, Slower]] = [(replace(self.now, trips=trips), {})] if links else []
        if links and step_seconds > longest:
            return delayed
        for direction, seconds in today.direction_seconds(self.now).items():
            if seconds[0] == longest:
                return [(self.now, {direction: slower})]
        busy = today.worker_seconds(self.now)
        worker = max(reversed(busy), key=lambda one: float(busy[one][0]))
        return [(self.now, {worker: slower}), *delayed]
