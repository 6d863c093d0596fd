"""A race of training runs: what each did, and how long each took or would have taken. Calculations only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

SETTLED_SECONDS = 2.0
"""After a change, until the pace of a run that keeps its cut is even again."""


class Phase(NamedTuple):
    """The state of links and devices from a moment on."""

    begin_seconds: float
    bits_per_second: float
    slower: float
    """Factor by which the devices are slower than at first."""
    words: str


class Moment(NamedTuple):
    """A run at the end of a step."""

    seconds: float
    """Since the race began."""
    steps: int
    """Done by then."""
    loss: float
    """Loss of that step."""
    cut: int
    """Blocks on the device."""


class Note(NamedTuple):
    """A deed of the engine of a run, and its reason."""

    seconds: float
    """Since the race began."""
    words: str


@dataclass
class Racer:
    """A run in the race."""

    name: str
    moments: list[Moment] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def moves(self) -> list[Moment]:
        """The beginning, and the first moment after each move."""
        return [*self.moments[:1], *(after for before, after in pairwise(self.moments) if before.cut != after.cut)]

    def seconds_to(self, steps: int, steady_since: float) -> float:
        """Return the time at which it had done so many steps, or would have: at the pace that it had from
        `steady_since` on."""
        reached = next((moment.seconds for moment in self.moments if moment.steps >= steps), None)
        if reached is not None:
            return reached
        steady = [moment for moment in self.moments if moment.seconds >= steady_since]
        first, last = steady[0], steady[-1]
        return last.seconds + (steps - last.steps) * (last.seconds - first.seconds) / (last.steps - first.steps)


_CAUSES = {"device": "a worker is slower or quicker", "link": "the link", "pin": "a pin", "worker": "a trainer is back"}


def note_of(seconds: float, entry: Mapping[str, Any]) -> Note | None:
    """Return what an entry of a run's log says of its engine; None where it says nothing of that."""
    match entry.get("event"):
        case "changing the deployment":
            cut, _, _ = entry["wanted"].partition(",")
            there, here = entry["predicted_seconds_per_step"], entry["staying_seconds_per_step"]
            return Note(seconds, f"{cut}, {_CAUSES[entry['reason']]}: {there:.2f} s a step, not {here:.2f}")
        case "a worker was measured again, because one factor did not bring it right":
            return Note(seconds, f"measured {entry['worker']} again: {entry['training_waited_seconds']:.2f} s")
        case "the times of a worker stay, because it could not be measured again":
            return Note(seconds, f"kept the times of {entry['worker']}: {entry['reason']}")
    return None


@dataclass(frozen=True)
class Race:
    """The run with the engine beside those that keep what they began with."""

    phases: Sequence[Phase]
    engine: Racer
    kept: Sequence[Racer]

    @property
    def steps(self) -> int:
        """Number of steps that the engine's run did."""
        return self.engine.moments[-1].steps

    def seconds_of(self, racer: Racer) -> float:
        """Return the time that a run took for these steps, or would have taken."""
        return racer.seconds_to(self.steps, self.phases[-1].begin_seconds + SETTLED_SECONDS)

    def times_as_fast(self, racer: Racer) -> float:
        """Return the ratio by which the engine's run was faster than another one."""
        return self.seconds_of(racer) / self.seconds_of(self.engine)

    @property
    def against_best(self) -> tuple[float, Racer]:
        """Return the ratio by which the engine's run was faster than the fastest of the others, and which that was."""
        best = min(self.kept, key=self.seconds_of)
        return self.times_as_fast(best), best

    @property
    def verdict(self) -> str:
        """Describe the engine's run, and its ratio to each other run, in two lines."""
        cuts = ", ".join(str(move.cut) for move in self.engine.moves)
        first, *others = self.kept
        compared = [f"{self.times_as_fast(first):.1f} times as fast as {first.name}"]
        compared += [f"{self.times_as_fast(racer):.1f} as {racer.name}" for racer in others]
        done = f"with {self.engine.name}: {self.steps} steps in {self.seconds_of(self.engine):.0f} s, at cuts {cuts}"
        return f"{done}\n{', '.join(compared)}"
