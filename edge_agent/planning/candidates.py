"""Candidates: trainers of which a device may choose one, with what is known of each, their file, and their ranking."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.planning.cost import Conditions
from edge_agent.planning.families.pair import best_pairs
from edge_agent.planning.families.question import Question
from edge_agent.planning.measurements import Floats
from edge_agent.planning.plan import Plan
from edge_agent.planning.rates import Rates
from shared.errors import PlanError

MOST_CANDIDATES = 1000
MOST_BYTES = 1024 * 1024
"""Limits far above any list of trainers that a device can probe."""


@dataclass(frozen=True)
class Candidate:
    """A trainer, as its last probe found it."""

    name: str
    rates: Rates
    """The link from the device to it."""
    cloud_factor: float = 1.0
    """Ratio of its times to those of the profile's trainer."""
    busy: float = 0.0
    """Part of the time for which its compute thread was busy with other sessions, from 0 to 1."""
    sessions: int = 0
    """Other sessions that it serves."""

    @property
    def factor(self) -> float:
        """Return the factor of the times there. The compute thread serves the session that has used it least, so one more gets
        an equal share at least."""
        return self.cloud_factor / max(1.0 - self.busy, 1.0 / (self.sessions + 1))


def conditions_for(candidates: Sequence[Candidate], device_factor: float = 1.0) -> Conditions:
    """Return the conditions between the device and each of N candidates, stacked: arrays begin with an axis of N.

    device_factor: ratio of the device's times to those of the profile.
    """
    links = [each.rates for each in candidates]
    return stacked_conditions(
        np.array([link.uplink for link in links]),
        np.array([link.downlink for link in links]),
        np.array([link.round_trip_seconds for link in links]),
        np.array([each.factor for each in candidates]),
        device_factor=device_factor,
    )


def stacked_conditions(
    uplinks: Floats, downlinks: Floats, trips: Floats, factors: Floats, *, device_factor: float = 1.0
) -> Conditions:
    """Return the same from columns of shape (N,): bits per second, seconds, and factors of the trainer's times.

    device_factor: of the device's times.
    """
    rates, both_trips = np.ones((len(uplinks), 2, 2)), np.zeros((len(uplinks), 2, 2))
    rates[:, 0, 1], rates[:, 1, 0] = uplinks, downlinks
    both_trips[:, 0, 1] = trips
    return Conditions(rates, both_trips, np.stack([np.full_like(factors, device_factor), factors], axis=-1))


def ranked_candidates(question: Question, candidates: Sequence[Candidate]) -> list[Plan]:
    """Return the best layout with every candidate, and the device alone, the fastest first.

    Of equals the device alone comes first, then the given order. Candidates with which no layout may be chosen are left out.
    PlanError as `best_pairs`.
    """
    pairs = best_pairs(question)
    found = list[Plan]()
    if (alone := pairs.alone()) is not None:
        layout = pairs.layout(alone[0])
        found.append(Plan(layout, alone[1], name=layout.workers[0]))
    rows, seconds = pairs.with_each(conditions_for(candidates))
    found += [
        Plan(pairs.layout(row, candidate.name), each, name=candidate.name)
        for candidate, row, each in zip(candidates, rows.tolist(), seconds.tolist(), strict=True)
        if math.isfinite(each)
    ]
    return sorted(found, key=lambda one: one.seconds_per_step)


def load_candidates(path: Path, taken: Collection[str] = ()) -> list[Candidate]:
    """Read a list of candidates from a JSON file. taken: names that none of them may have. PlanError for any error in it."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PlanError(f"{path}: the candidates cannot be read: {error.strerror or error}") from error
    if len(raw) > MOST_BYTES:
        raise PlanError(f"{path}: the candidates take more than {MOST_BYTES} bytes; leave some out")
    try:
        decoded = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path}: the candidates are not JSON: {error}") from error
    return parse_candidates(decoded, str(path), taken)


def parse_candidates(decoded: object, where: str, taken: Collection[str] = ()) -> list[Candidate]:
    """Read the same from a decoded JSON value. PlanError, beginning with `where`, for any error in it."""
    if not isinstance(decoded, list) or not 1 <= len(decoded) <= MOST_CANDIDATES:
        raise PlanError(f"{where}: the candidates must be a list of 1 to {MOST_CANDIDATES} objects")
    found: list[Candidate] = []
    names = set(taken)
    for number, each in enumerate(decoded, start=1):
        candidate = _parse(each, f"{where}: candidate {number}")
        if candidate.name in names:
            raise PlanError(f'{where}: candidate {number} is named "{candidate.name}"; each needs a name of its own')
        names.add(candidate.name)
        found.append(candidate)
    return found


_NUMBERS = ("uplink", "downlink", "round_trip_seconds", "cloud_factor", "busy")
_KEYS = ("name", *_NUMBERS, "sessions")
_NEEDED = ("name", "uplink", "downlink")


def _parse(each: object, where: str) -> Candidate:
    if not isinstance(each, dict):
        raise PlanError(f"{where} must be an object with {', '.join(_KEYS)}")
    if missing := [key for key in _NEEDED if key not in each]:
        raise PlanError(f"{where} has no {missing[0]}; it needs {', '.join(_NEEDED)}")
    if unknown := [key for key in each if key not in _KEYS]:
        raise PlanError(f'{where} has "{str(unknown[0])[:60]}"; it may have {", ".join(_KEYS)}')
    name, sessions = each["name"], each.get("sessions", 0)
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise PlanError(f"{where}: name must be a text of 1 to 100 characters")
    if not isinstance(sessions, int) or isinstance(sessions, bool) or not 0 <= sessions <= 10**6:
        raise PlanError(f"{where}: sessions must be a whole number of 0 to 1,000,000")
    numbers = {key: _number(each[key], f"{where}: {key}") for key in _NUMBERS if key in each}
    busy, factor = numbers.get("busy", 0.0), numbers.get("cloud_factor", 1.0)
    if busy > 1.0:
        raise PlanError(f"{where}: busy is {busy}; it must be from 0 to 1")
    if factor == 0.0:
        raise PlanError(f"{where}: cloud_factor is 0; it must be above 0")
    try:
        rates = Rates(numbers["uplink"], numbers["downlink"], numbers.get("round_trip_seconds", 0.0))
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from error
    return Candidate(name, rates, factor, busy, sessions)


def _number(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        if is_number and 0.0 <= float(value) < math.inf:
            return float(value)
    except OverflowError:
        pass
    raise PlanError(f"{where} must be a finite number of 0 or more")
