"""Simulated training on a path: second by second, what each policy does and how many steps it makes of it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.rivals.moving.followers import (
    BestFollower,
    EdgeMoveFollower,
    Follower,
    Kept,
    Nearest,
    PipeDreamE,
    Sticky,
)
from benchmarks.rivals.moving.look import Look
from benchmarks.rivals.moving.world import Window, World
from edge_agent.planning.engine.prospects import DEVICE, Place
from shared.errors import PlanError

MAKERS: dict[str, Callable[[World, random.Random], Follower]] = {
    "best": lambda world, draw: BestFollower(world),  # noqa: ARG005
    "sticky": lambda world, draw: Sticky(),  # noqa: ARG005
    "nearest": lambda world, draw: Nearest(),  # noqa: ARG005
    "edgemove": EdgeMoveFollower,
    "pipedream-e": lambda world, draw: PipeDreamE(draw),  # noqa: ARG005
    "device-cloud": lambda world, draw: Kept(len(world.names) - 1),  # noqa: ARG005
    "edge-only": lambda world, draw: Kept(DEVICE),  # noqa: ARG005
}
LOWER_BOUND = "lower-bound"
"""The name of what no policy exceeds."""
MOVE_POLICY_NAMES = (*MAKERS, LOWER_BOUND)
TUNE_SECONDS = 10
"""Interval at which the engine looks for a better layout with the same trainer."""
TUNE_MARGIN = 0.05
TUNE_HORIZON_SECONDS = 60.0
"""Time within which such a change has to win its way twice."""


@dataclass(frozen=True)
class Handover:
    """A change of the candidate."""

    second: int
    origin: str
    target: str
    moved_bytes: float
    paused_seconds: float


@dataclass
class Span:
    """A time with one candidate and one layout, pauses included."""

    begin: int
    end: int
    trainer: str
    cut: int
    bits: int
    staleness: int
    steps: float = 0.0


@dataclass
class MoveRun:
    """The training of one policy."""

    policy: str
    steps: float = 0.0
    handovers: list[Handover] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    probe_bytes: int = 0


def simulate_moves(world: World, policies: Sequence[str] = (), seed: int = 0) -> list[MoveRun]:
    """Train on the path under each policy; under all if none is named. seed: of what policies do by chance.

    PlanError for an unknown policy, and for one that needs the device alone where that may not be chosen.
    """
    if unknown := [name for name in policies if name not in MOVE_POLICY_NAMES]:
        raise PlanError(f'there is no policy "{unknown[0][:60]}"; there are {", ".join(MOVE_POLICY_NAMES)}')
    names = [
        name for name in policies or MOVE_POLICY_NAMES if name != "edge-only" or policies or world.pairs.is_alone.any()
    ]
    if "edge-only" in names and not world.pairs.is_alone.any():
        raise PlanError("the policy edge-only needs the device alone, which may not be chosen or was not measured")
    runs: list[_Moving | _Bound] = [
        _Bound() if name == LOWER_BOUND else _Moving(world, name, MAKERS[name](world, random.Random(f"{seed} {name}")))
        for name in names
    ]
    for window in world.windows():
        for run in runs:
            run.go_on(window)
    return [run.result for run in runs]


class _Bound:
    """The fastest candidate at each second, without any pause: what no policy can exceed."""

    def __init__(self) -> None:
        self.result = MoveRun(LOWER_BOUND)

    def go_on(self, window: Window) -> None:
        self.result.steps += float(np.sum(1.0 / window.best_seconds.min(axis=1)))


class _Moving:
    def __init__(self, world: World, name: str, follower: Follower) -> None:
        self._world, self._follower = world, follower
        self._place: Place | None = None
        self._resumes_at = 0.0
        self._total_seconds = 0.0
        self.result = MoveRun(name)

    def go_on(self, window: Window) -> None:
        """Train for the seconds of a window."""
        for moment in range(len(window)):
            self._pass_second(window, moment)

    def _pass_second(self, window: Window, moment: int) -> None:
        second = window.begin + moment
        if second >= self._resumes_at:
            self._decide(self._look(window, moment))
        assert self._place is not None
        seconds_per_step = window.seconds_of(moment, *self._place)
        if np.isfinite(seconds_per_step):
            self._total_seconds = window.total_of(moment, *self._place)
        done = min(1.0, max(0.0, second + 1.0 - self._resumes_at)) / seconds_per_step
        span = self.result.spans[-1]
        span.steps += done
        span.end = second + 1
        self.result.steps += done
        self.result.probe_bytes = self._follower.probe_bytes

    def _look(self, window: Window, moment: int) -> Look:
        return Look(self._world, window, moment, self.result.steps, self._place, self._total_seconds)

    def _decide(self, look: Look) -> None:
        if self._place is None:
            self._begin(look.second, self._follower.start(look))
            return
        target = self._follower.follow(look)
        if target is None and self._follower.tunes and look.second % TUNE_SECONDS == 0:
            target = self._tuned(look)
        if target is None or target == self._place:
            return
        pauses, _ = look.pauses(np.array([target.candidate]), np.array([target.row]))
        names = self._world.names
        if target.candidate != self._place.candidate:
            origin, moved_bytes = names[self._place.candidate], look.moved_bits(*target) / 8.0
            self.result.handovers.append(
                Handover(look.second, origin, names[target.candidate], moved_bytes, float(pauses[0]))
            )
        self._resumes_at = look.second + float(pauses[0])
        self._begin(look.second, target)

    def _begin(self, second: int, place: Place) -> None:
        self._place = place
        pairs = self._world.pairs
        cut, bits, staleness = (int(column[place.row]) for column in (pairs.cuts, pairs.bits, pairs.staleness))
        self.result.spans.append(Span(second, second, self._world.names[place.candidate], cut, bits, staleness))
        self._follower.note_moved(second, place)

    def _tuned(self, look: Look) -> Place | None:
        """Return the better layout with the same candidate, where it pays to change."""
        assert self._place is not None
        best, now = look.best(self._place.candidate), look.seconds_per_step
        later = float(look.best_seconds[self._place.candidate])
        if not later <= (1.0 - TUNE_MARGIN) * now or not np.isfinite(now):
            return None
        pause = float(look.pauses(np.array([best.candidate]), np.array([best.row]))[0][0])
        return best if (1.0 / later - 1.0 / now) * TUNE_HORIZON_SECONDS >= 2.0 * pause / now else None
