"""Experts: rules for following a link that varies, simulated beside the run until one is proven.

One way to train is to keep a deployment. Another is to move to the best one of the last seconds, whenever that pays for
itself within some time; on some links this beats any deployment. The better way for a link is not known beforehand, so
each expert is simulated on the observed rates, as if it had been followed from the beginning, and pays for its moves.
The ledger decides whether one leads, as it does for deployments (the name and the idea: prediction with expert advice,
Cesa-Bianchi and Lugosi, "Prediction, Learning, and Games", 2006, ch. 2). Decides nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from edge_agent.planning.engine.beliefs import Mean
from edge_agent.planning.measurements import Bools, Floats, Ints

MoveSeconds = Callable[[int], Floats]
"""Seconds from one candidate to each, shape (n,), at present rates."""


class Rule(NamedTuple):
    """The conditions of an expert's moves."""

    memory_seconds: float
    """Time constant of the mean of each candidate's speed."""
    payback_seconds: float
    """Time within which a move must repay its cost."""


RULES = (Rule(2.0, 10.0), Rule(2.0, 30.0), Rule(2.0, 120.0), Rule(15.0, 30.0), Rule(60.0, 120.0))


class Expert:
    """One rule, simulated beside the run."""

    def __init__(self, rule: Rule, index: int, staleness: Ints, dwell_seconds: float) -> None:
        """index: of the candidate that it begins with. staleness: K of each, shape (n,).

        dwell_seconds: least time between two moves.
        """
        self._rule = rule
        self._staleness = staleness
        self._dwell_seconds = dwell_seconds
        self._speeds = Mean()
        self.begin(index)

    def begin(self, index: int) -> None:
        """Begin at a candidate, however the run came there."""
        self.index = self.left = index
        self._steps_in_flight = 0.0  # those that began at _left
        self._way_to_go = 0.0  # part of the move from there
        self.stayed_seconds = 0.0  # since it arrived

    def consider(self, rows: Ints, staleness: Ints, speeds: Floats) -> None:
        """Go on among other candidates. rows: of each among the present ones, shape (n,); -1 for a newcomer. speeds: assumed of
        newcomers. Its own places are among them."""
        places = {row: place for place, row in enumerate(rows.tolist())}
        self.index, self.left = places[self.index], places[self.left]
        self._staleness = staleness
        if len(self._speeds.value):
            self._speeds.value = np.where(rows >= 0, self._speeds.value[rows], speeds)

    def play(self, seconds: float, speeds: Floats, allowed: Bools, move_seconds: MoveSeconds) -> float:
        """Return its steps per second over the last `seconds`. Then it moves, if that pays.

        speeds: of the candidates, shape (n,). allowed: permitted places, shape (n,).

        After a move the batches in flight end as they began, also after a move without blocks: other bits or another K.
        """
        drained_steps = min(self._steps_in_flight, seconds * float(speeds[self.left]))
        self._steps_in_flight -= drained_steps
        done_steps = drained_steps
        self._speeds.add(seconds, self._rule.memory_seconds, speeds)
        if self._steps_in_flight == 0.0:
            free_seconds = self._after_the_way(seconds - drained_steps / float(speeds[self.left]), move_seconds)
            done_steps += free_seconds * float(speeds[self.index])
            if self._way_to_go == 0.0:
                self.stayed_seconds += seconds
                if self.stayed_seconds >= self._dwell_seconds:
                    self._move(allowed, move_seconds(self.index))
        return done_steps / seconds

    def _after_the_way(self, seconds: float, move_seconds: MoveSeconds) -> float:
        """Return the rest of these seconds after the move's share of them, at the link's pace."""
        if self._way_to_go == 0.0:
            return seconds
        way_seconds = float(move_seconds(self.left)[self.index])
        if self._way_to_go * way_seconds > seconds:
            self._way_to_go -= seconds / way_seconds
            return 0.0
        seconds -= self._way_to_go * way_seconds
        self._way_to_go = 0.0
        return seconds

    def _move(self, allowed: Bools, way_seconds: Floats) -> None:
        """Move to the best candidate, if it is worth the move."""
        mean, index = self._speeds.value, self.index
        gains = self._rule.payback_seconds * (mean - mean[index]) - way_seconds * np.maximum(mean, mean[index])
        best = int(np.argmax(np.where(allowed, gains, 0.0)))
        if gains[best] > 0.0:
            self.begin(best)
            self.left, self._steps_in_flight = index, float(self._staleness[index] + 1)
            self._way_to_go = float(way_seconds[best] > 0.0)


class Experts:
    """One of each rule."""

    def __init__(self, index: int, staleness: Ints, dwell_seconds: float) -> None:
        """index, staleness, dwell_seconds: as for `Expert`."""
        self._each = [Expert(rule, index, staleness, dwell_seconds) for rule in RULES]

    def __len__(self) -> int:
        return len(self._each)

    @property
    def places(self) -> Ints:
        """Return the candidates of the experts, present or at the end of their move."""
        return np.array([expert.index for expert in self._each])

    @property
    def held(self) -> set[int]:
        """Return the candidates that they are at, or come from."""
        return {place for expert in self._each for place in (expert.index, expert.left)}

    def consider(self, rows: Ints, staleness: Ints, speeds: Floats) -> None:
        """Go on among other candidates, as `Expert.consider` does."""
        for expert in self._each:
            expert.consider(rows, staleness, speeds)

    def stayed_seconds(self, number: int) -> float:
        """Return the seconds for which an expert has stayed at its place."""
        return self._each[number].stayed_seconds

    def begin(self, index: int) -> None:
        """Gather all at one candidate. From there on they have to prove themselves again."""
        for expert in self._each:
            expert.begin(index)

    def play(self, seconds: float, speeds: Floats, allowed: Bools, move_seconds: MoveSeconds) -> Floats:
        """Play all experts as `Expert.play` does, shape (experts,)."""
        return np.array([expert.play(seconds, speeds, allowed, move_seconds) for expert in self._each])
