"""Prospects: the pool of all layouts with all candidates, by what probes and training have shown, and the ways.

The N candidates have places that never change: the device alone is 0, and trainers follow. The cost model misses what it does
not know. What training takes with today's candidate corrects it there, and what has been the least error of all corrects it
everywhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edge_agent.planning.candidates import Candidate, conditions_for
from edge_agent.planning.cost import DeviceLinks, handover_seconds, steady_seconds
from edge_agent.planning.families.pair import Pairs
from edge_agent.planning.measurements import Floats, Ints

DEVICE = 0
"""Place of the device alone."""
REMEMBERED_SECONDS = 600.0
"""Time for which it is remembered by how much the model was wrong with a candidate that was left."""
LEAST_PAUSE, MOST_PAUSE = 0.5, 20.0
"""Limits of the ratio of a handover's pause to the expected one."""


class Place(NamedTuple):
    """A member of the pool: a candidate, and the row of its layout."""

    candidate: int
    row: int


@dataclass(frozen=True)
class Today:
    """The training at one moment."""

    seconds: float
    """Time by any clock that never goes back."""
    steps: float
    place: Place
    seconds_per_step: float | None
    """Measured lately; None before there were enough steps."""
    device_factor: float = 1.0
    """Ratio of the device's times to those of the profile."""


@dataclass(frozen=True, eq=False)
class Seen:
    """The pool at one moment, as a policy sees it. Columns have shape (N,)."""

    seconds: float
    """Time by any clock that never goes back."""
    steps: float
    """Batches settled so far."""
    by_row: Floats
    """Seconds of a step by layout, as modelled, shape (N, n); infinite where it may not be chosen."""
    rows: Ints
    """Best layout with each."""
    step_seconds: Floats
    """Seconds a step with each: with today's layout for the present one, with the best for others. Infinite where it is out of
    reach or about to stop."""
    handover_seconds: Floats
    """Pause of training on the way to each."""
    moving_seconds: Floats
    """Part of it until all blocks are there."""
    factors: Floats
    """Ratio of each one's times to those of the profile's trainer. Infinite where it is out of reach, and for the device."""
    trip_seconds: Floats
    """Round trips."""

    def best(self, candidate: int) -> Place:
        """Return a candidate with its best layout."""
        return Place(candidate, int(self.rows[candidate]))


class Prospects:
    """The prospects of one run. One caller at a time."""

    def __init__(self, pairs: Pairs, candidates: int) -> None:
        """candidates: N, the device among them."""
        self.pairs = pairs
        self._candidates = candidates
        self._least_error: float | None = None
        """Least ratio of the measured seconds of a step to the modelled ones, with any candidate."""
        self._errors: dict[int, tuple[float, float]] = {}
        """The last such ratio with each candidate, and its time."""
        self._pause_ratio = 1.0

    def adopt(self, pairs: Pairs) -> None:
        """Choose among other layouts from now on. What was learnt of candidates stays."""
        self.pairs = pairs

    def note_pause(self, expected_seconds: float, seconds: float) -> None:
        """Learn from a handover what the next ones take. expected_seconds: `moving_seconds` at the time."""
        if expected_seconds > 0.0:
            ratio = self._pause_ratio * seconds / expected_seconds
            self._pause_ratio = min(MOST_PAUSE, max(LEAST_PAUSE, ratio))

    def weigh(self, today: Today, known: Sequence[Candidate | None]) -> Seen:
        """Weigh all candidates.

        known: of each trainer what is known, None where it is out of reach or would not serve, N - 1 in all.
        """
        pairs, (here, row) = self.pairs, today.place
        reached = [place for place, one in enumerate(known, start=1) if one is not None]
        by_row = np.full((self._candidates, len(pairs)), np.inf)
        filling = np.zeros_like(by_row)
        uplinks, downlinks, trips = (np.zeros(self._candidates) for _ in range(3))
        factors = np.full(self._candidates, np.inf)
        if reached:
            usable = [one for one in known if one is not None]
            times = pairs.loads.at(conditions_for(usable, today.device_factor))
            seconds = steady_seconds(times.longest, times.total, pairs.loads.ahead)
            by_row[reached] = np.where(pairs.is_alone, np.inf, seconds)
            filling[reached] = times.filling()
            uplinks[reached] = [one.rates.uplink for one in usable]
            downlinks[reached] = [one.rates.downlink for one in usable]
            trips[reached] = [one.rates.round_trip_seconds for one in usable]
            factors[reached] = [one.factor for one in usable]
        uplinks[DEVICE] = downlinks[DEVICE] = np.inf
        if (alone := pairs.alone(today.device_factor)) is not None:
            by_row[DEVICE, alone[0]] = alone[1]
        rows: Ints = np.argmin(by_row, axis=1)
        everyone = np.arange(self._candidates)
        step_seconds = by_row[everyone, rows]
        self._correct(step_seconds, today, float(by_row[today.place]))
        links = DeviceLinks(uplinks, downlinks, trips)
        before = here, int(pairs.cuts[row])
        pauses = handover_seconds(pairs.profile, links, before, (everyone, pairs.cuts[rows])) * self._pause_ratio
        return Seen(
            seconds=today.seconds,
            steps=today.steps,
            by_row=by_row,
            rows=rows,
            step_seconds=step_seconds,
            handover_seconds=pauses + filling[everyone, rows],
            moving_seconds=pauses,
            factors=factors,
            trip_seconds=trips,
        )

    def _correct(self, step_seconds: Floats, today: Today, modelled: float) -> None:
        """Correct the modelled seconds in place by what was measured with today's candidate now, and with others before."""
        here, is_known = today.place.candidate, np.isfinite(modelled)
        if is_known and today.seconds_per_step is not None:
            error = today.seconds_per_step / modelled
            self._errors[here] = error, today.seconds
            self._least_error = error if self._least_error is None else min(error, self._least_error)
        least, errors = max(1.0, self._least_error or 1.0), np.ones(self._candidates)
        for place in range(self._candidates):
            error, at = self._errors.get(place, (least, today.seconds))
            is_old = today.seconds - at > REMEMBERED_SECONDS
            errors[place] = max(least, least if is_old else error)
        step_seconds *= errors
        if is_known:  # of today's candidate today's layout counts, not the best one
            measured = today.seconds_per_step
            step_seconds[here] = modelled * errors[here] if measured is None else measured
