"""Steps of placements of three tiers as they are measured: three processes, whose blocks sleep, on three machines in a line.

The device's traffic to the cloud goes through the edge server's machine. Needs root.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.chain.machines import Machines, started
from benchmarks.chain.pace import seconds_per_step
from benchmarks.net import meshed_namespaces
from benchmarks.support.report import Spread
from benchmarks.tiers.phases import phases_of
from benchmarks.tiers.sleeping import flags_of
from edge_agent.planning import Profile, Question, SearchSpace, costed
from shared.errors import PlanError
from shared.placement import AGENT, Placement, document_of

PAYLOAD = 0.956
"""Share of a rate that TCP's headers leave."""
SECONDS, WARM_UP_STEPS = 10.0, 6
ALIKE = 0.02
"""Relative difference within which a rate or a trip is another."""


@dataclass(frozen=True)
class Measured:
    """The step of a placement, measured and predicted."""

    seconds: Spread
    """Seconds of a step."""
    predicted: float
    """Seconds in the simulator."""
    eq12: float | None
    """Seconds in phases; None where the placement is no division among three roles."""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.seconds.median - 1.0

    @property
    def eq12_error(self) -> float | None:
        """Relative error of the seconds in phases."""
        return None if self.eq12 is None else self.eq12 / self.seconds.median - 1.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Measured":
        """Return what `document` has made."""
        spread = Spread(document["seconds_per_step"], *document["quartiles"])
        return cls(spread, document["predicted_seconds"], document["eq12_seconds"])

    def document(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "seconds_per_step": self.seconds.median,
            "quartiles": [self.seconds.lower_quartile, self.seconds.upper_quartile],
            "predicted_seconds": self.predicted,
            "eq12_seconds": self.eq12,
            "error": self.error,
            "eq12_error": self.eq12_error,
        }


def question_of(profile: Profile, staleness: int = 0, inputs_to: Sequence[str] | None = None) -> Question:
    """Return the question of a profile. inputs_to: the trainers that may have raw samples, all where None."""
    permitted = profile.names[1:] if inputs_to is None else inputs_to
    return Question(profile, SearchSpace((32,), staleness, inputs_to=frozenset(permitted)))


def check_line(profile: Profile) -> None:
    """Refuse a profile of other links than those of machines in a line. Raises PlanError."""
    device, near, far = profile.names
    if device != AGENT:
        raise PlanError(
            f"the first worker of the profile is {device!r}; it must be {AGENT!r}, as a run calls the device"
        )
    first, second, through = profile.rates(device, near), profile.rates(near, far), profile.rates(device, far)
    expected = {
        "up": (through.uplink, min(first.uplink, second.uplink)),
        "down": (through.downlink, min(first.downlink, second.downlink)),
        "round_trip_seconds": (
            through.round_trip_seconds,
            first.round_trip_seconds + second.round_trip_seconds,
        ),
    }
    for key, (given, right) in expected.items():
        if not math.isclose(given, right, rel_tol=ALIKE):
            raise PlanError(
                f"the profile has {key} {given:g} between {device} and {far}; through {near} it is {right:g}"
            )
    segments = [{frozenset(hop) for hop in hops} for hops in profile.shared_segments]
    for link in ((device, near), (near, far)):
        if not any({frozenset(link), frozenset((device, far))} <= segment for segment in segments):
            raise PlanError(
                f"the links {device}-{far} and {link[0]}-{link[1]} share no segment in the profile; what the device and {far} "
                f"send each other goes over the link {link[0]}-{link[1]}, too"
            )


class Bench:
    """Machines, and the profile of them and of a model."""

    def __init__(self, profile: Profile, machines: Machines, flags: Sequence[str]) -> None:
        """flags: an agent's, of the model and its data."""
        self.profile, self._machines, self._flags = profile, machines, flags
        self._runs = 0

    def stretches(self, placement: Placement, seconds: float = SECONDS) -> list[float]:
        """Return the seconds per step of each stretch of a run."""
        self._runs += 1
        path = self._machines.folder / f"placement-{self._runs}.json"
        path.write_text(json.dumps(document_of(placement)))
        run = self._machines.train(
            [
                *self._flags,
                f'placement.file="{path}"',
                f"deployment.staleness={placement.staleness}",
                permission(self.profile.names[1:]),
            ]
        )
        window = placement.staleness + 1
        stretch = math.lcm(window, window + self.profile.samples_ahead)
        try:
            run.steps(WARM_UP_STEPS + window)
            run.watch(seconds)
            return seconds_per_step(run.steps(stretch)[WARM_UP_STEPS + window :], stretch)
        finally:
            run.stop()

    def measured(self, placement: Placement, stretches: Sequence[float]) -> Measured:
        """Put what was measured beside what is predicted."""
        question = question_of(self.profile, placement.staleness)
        found = costed(question, placement)
        phased = phases_of(question, found.layout)
        return Measured(Spread.of(stretches), found.seconds_per_step, None if phased is None else phased[1])


def permission(trainers: Sequence[str]) -> str:
    """Return the flag of an agent whose trainers may have everything."""
    named = json.dumps(list(trainers))
    return f"privacy={{inputs_to={named}, gradients_to={named}}}"


@contextmanager
def line(
    folder: Path,
    names: Sequence[str],
    trips: Mapping[tuple[str, str], float],
    rates: Mapping[tuple[str, str], tuple[float, float]],
    shares: Mapping[str, float] | None = None,
) -> Iterator[Machines]:
    """Make machines in a line, the device's first.

    trips, rates: of each link to the next machine, in seconds there and back, and in bits a second up and down. shares: of a
    core, by name, where blocks compute. Raises LinkError where no machines can be made.
    """
    with (
        meshed_namespaces("tiers", names, trips, in_a_line=True) as mesh,
        started(folder, mesh, shares, trainer_flags=("server.accept_inputs=true",)) as machines,
    ):
        for (near, far), (up, down) in rates.items():
            mesh.ends[near, far].shape(up)
            mesh.ends[far, near].shape(down)
        yield machines


@contextmanager
def bench(folder: Path, profile: Profile) -> Iterator[Bench]:
    """Make the machines of a profile, with its rates and trips, whose blocks sleep. Raises PlanError where it has other links
    than a line, and LinkError where no machines can be made."""
    check_line(profile)
    links = {hop: profile.rates(*hop) for hop in pairwise(profile.names)}
    trips = {hop: link.round_trip_seconds for hop, link in links.items()}
    rates = {hop: (link.uplink / PAYLOAD, link.downlink / PAYLOAD) for hop, link in links.items()}
    with line(folder, profile.names, trips, rates) as machines:
        yield Bench(profile, machines, flags_of(profile))
