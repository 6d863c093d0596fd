"""The policy `edgemove`: Algorithms 1 to 3 of paper 003, with what they leave open.

Algorithm 1 gives a first cut, Algorithm 2 moves it by one block a cycle, and Algorithm 3 looks for another trainer
once a cycle takes longer than every one since the last change. The paper's Algorithm 2 never rests; this one does once both
neighbours of its cut were slower. Its first cut is clamped to 1..L: the data stays on the device.
"""

import random
from collections.abc import Sequence

import numpy as np

from edge_agent.planning.engine.prospects import DEVICE, Place, Seen
from edge_agent.planning.families.pair import Pairs
from edge_agent.planning.measurements import Ints
from edge_agent.planning.profile import Profile

CYCLE_STEPS = 500
"""Steps of a cycle. Over so many, the times of single steps vary by 3 % in the paper."""


def first_cut(blocks: int, device_seconds: float, trainer_seconds: float, round_trip_seconds: float) -> int:
    """Return the blocks on the device by Algorithm 1, clamped to 1..L.

    device_seconds, trainer_seconds: of a step of the whole model on either.
    """
    device, trainer = device_seconds / blocks, trainer_seconds / blocks
    return min(blocks, max(1, round((blocks * trainer + round_trip_seconds) / (device + trainer))))


class CutClimb:
    """Algorithm 2: the cut moves on while cycles get faster, turns after a slower one, and rests between two slower ones."""

    def __init__(self, cut: int, cuts: Sequence[int], draw: random.Random) -> None:
        """cut: to begin with, of `cuts`: those that may be chosen, rising. draw: the first direction."""
        self._cuts = list(cuts)
        self._best = self._tried = self._cuts.index(cut)
        self._best_seconds: float | None = None
        self._direction = draw.choice((1, -1))
        self._turns = 0
        self.is_resting = False

    @property
    def cut(self) -> int:
        """Return the cut under trial, or the one at which it rests."""
        return self._cuts[self._tried]

    def end_cycle(self, seconds_per_step: float) -> int:
        """Enter what a step of the cycle took at the present cut. Returns the next one."""
        if self.is_resting:
            return self.cut
        if self._best_seconds is None or seconds_per_step < self._best_seconds:
            is_first = self._best_seconds is None
            self._best, self._best_seconds = self._tried, seconds_per_step
            # The cut from which it came was slower; only the next one in this direction is unknown.
            self._turns = 0 if is_first else 1
        else:
            self._turn()
        while self._turns < 2 and not 0 <= self._best + self._direction < len(self._cuts):
            self._turn()
        self.is_resting = self._turns >= 2
        self._tried = self._best if self.is_resting else self._best + self._direction
        return self.cut

    def _turn(self) -> None:
        self._turns += 1
        self._direction = -self._direction


class EdgeMove:
    """The policy `edgemove` among N candidates. It goes from trainer to trainer: all blocks on the device are a cut of one."""

    @classmethod
    def of(cls, pairs: Pairs, draw: random.Random, cycle_steps: int = CYCLE_STEPS) -> "EdgeMove":
        """Make it for these layouts."""
        return cls(pairs.cuts, len(pairs.profile), whole_seconds(pairs.profile), draw, cycle_steps)

    def __init__(
        self,
        cuts: Ints,
        blocks: int,
        whole: tuple[float, float],
        draw: random.Random,
        cycle_steps: int = CYCLE_STEPS,
    ) -> None:
        """cuts: of the n layouts that may be chosen. blocks: L. whole: see `whole_seconds`."""
        self._cycle_steps = cycle_steps
        self._cuts, self._blocks, self._draw = cuts, blocks, draw
        self._device_seconds, self._trainer_seconds = whole
        self._trainer: int | None = None
        self._climb: CutClimb | None = None
        self._worst_seconds: float | None = None
        self._cycle: tuple[float, float] | None = None

    def observe(self, seen: Seen) -> Place | None:
        """Return a proposal, or None to stay."""
        if not np.isfinite(seen.factors).any():
            return None
        if self._climb is None or self._trainer is None or not np.isfinite(seen.step_seconds[self._trainer]):
            return self._go_to_best(seen)
        if self._cycle is None:
            self._cycle = seen.seconds, seen.steps
            return None
        begun, steps_before = self._cycle
        if seen.steps - steps_before < self._cycle_steps:
            return None
        self._cycle = None
        took = (seen.seconds - begun) / (seen.steps - steps_before)
        if not self._climb.is_resting:
            cut = self._climb.cut
            later = self._climb.end_cycle(took)
            return None if later == cut else self._at_cut(seen, self._trainer, later)
        if self._worst_seconds is None:
            self._worst_seconds = took
        elif took > self._worst_seconds:
            if self._fastest(seen) != self._trainer:
                return self._go_to_best(seen)
            self._worst_seconds = took
        return None

    def note_moved(self, seconds: float, candidate: int) -> None:  # noqa: ARG002
        """Begin a cycle: it has nothing of the pause."""
        self._cycle = None
        if candidate != DEVICE:
            self._trainer = candidate

    def _go_to_best(self, seen: Seen) -> Place:
        """Choose the fastest by the probes, with Algorithm 1, and begin Algorithms 2 and 3 again."""
        self._trainer = best = self._fastest(seen)
        trainer_seconds, trip_seconds = (
            self._trainer_seconds * float(seen.factors[best]),
            float(seen.trip_seconds[best]),
        )
        wanted = first_cut(self._blocks, self._device_seconds, trainer_seconds, trip_seconds)
        cuts: list[int] = np.unique(self._cuts).tolist()
        cut = min(cuts, key=lambda one: (abs(one - wanted), one))
        self._climb, self._worst_seconds = CutClimb(cut, cuts, self._draw), None
        return self._at_cut(seen, best, cut)

    def _at_cut(self, seen: Seen, trainer: int, cut: int) -> Place:
        """Return a trainer with the best bits and K at a cut."""
        candidate = DEVICE if cut == self._blocks else trainer
        return Place(candidate, int(np.argmin(np.where(self._cuts == cut, seen.by_row[candidate], np.inf))))

    def _fastest(self, seen: Seen) -> int:
        return int(np.argmin(self._trainer_seconds * seen.factors + seen.trip_seconds))


def whole_seconds(profile: Profile) -> tuple[float, float]:
    """Return the seconds of a step of the whole model on the device, and on the profile's trainer, as the paper probes them.

    Where fewer blocks were measured on the device, in proportion; on the trainer, those of as many as were.
    """
    edge, rest = profile.workers[0].replayed[0], profile.workers[1].replayed[:, -1]
    cut = int(np.flatnonzero(np.isfinite(edge))[-1])
    return float(edge[cut]) * len(profile) / cut, float(rest[np.isfinite(rest)][0])
