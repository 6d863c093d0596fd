"""Loads: the demands of each of n layouts' steps on workers and links, and their seconds under given conditions.

Paper 000 (Eq. 9 to 12) has two workers and so four phases; paper 001 cuts a chain by its slowest part. Both are
max(T_max, T_sum / (K + 1)). T_max is the busiest worker or direction of a link. T_sum is the longest path through a
step: from the moment a worker begins it until it has done its part.

Arithmetic on arrays costs all layouts at once. Knows nothing of permitted choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from edge_agent.planning.cost.conditions import Conditions, Direction
from edge_agent.planning.measurements import Bools, Floats, Ints

Key = TypeVar("Key", int, Direction)
Slower = Mapping[int | Direction, float | Floats]
"""Factors by worker or direction of a link, one for all layouts or one for each."""


class Times(NamedTuple):
    """T_max and T_sum in seconds of n layouts. Shape (n,), or (T, n) for conditions of T moments."""

    longest: Floats
    total: Floats

    def filling(self) -> Floats:
        """Return the seconds until an empty pipeline is full."""
        return np.maximum(0.0, self.total - self.longest)


class Paths(NamedTuple):
    """The paths through a step of n layouts, m in all. Columns have shape (m,)."""

    starts: Ints | None
    """First path of each layout; None if each has one."""
    work: Mapping[int, Floats]
    """Seconds of each worker's work. They grow with its factor."""
    waited: Floats
    """Seconds of other work that a batch waits for."""
    bits: Mapping[Direction, Floats]
    halves: Mapping[Direction, Floats]
    """Number of a batch's trips between two workers, either way. Each takes half of their round trip."""


@dataclass(frozen=True, eq=False)
class Loads:
    """The loads of n layouts, as columns of shape (n,). NaN if something was not measured."""

    ahead: Ints
    """Steps that may be under way beyond the oldest: K, or more if nothing can be stale."""
    work: Mapping[int, Floats]
    """Seconds that each worker computes and encodes, by its place in the profile."""
    host: Mapping[int, Floats]
    """Seconds of a worker's other work, which no factor lengthens."""
    bits: Mapping[Direction, Floats]
    paths: Paths
    stretch: Floats | None = None
    """Seconds of a step over those of the formula, where the simulator has said them; None where the formula counts."""

    def __len__(self) -> int:
        """Return n."""
        return len(self.ahead)

    def at(self, conditions: Conditions, slower: Slower | None = None) -> Times:
        """Return the times of a step under some conditions. slower: factors by which some of its parts take longer."""
        slower = slower or {}
        computing = _slowed(_computing(self.work, conditions), slower)
        carrying = _slowed(_carrying(self.bits, conditions), slower)
        busy = [
            seconds + self.host[worker] if worker in self.host else seconds for worker, seconds in computing.items()
        ]
        longest = reduce(np.maximum, [*busy, *carrying.values()])
        paths = self.paths
        if paths.starts is not None:
            computing = _slowed(_computing(paths.work, conditions), slower)
            carrying = _slowed(_carrying(paths.bits, conditions), slower)
        parts = [computing[key] if isinstance(key, int) else carrying[key] for key in self._order]
        total = parts[0] + paths.waited
        for part in parts[1:]:
            total = total + part
        for (near, far), halves in paths.halves.items():
            total = total + halves * (conditions.trips[..., near, far, None] / 2)
        if paths.starts is not None:
            total = np.maximum.reduceat(total, paths.starts, axis=-1)
        return Times(longest, total)

    def seconds(self, conditions: Conditions, slower: Slower | None = None) -> Floats:
        """Return the seconds of a step with a full pipeline, shape (n,)."""
        seconds = steady_seconds(*self.at(conditions, slower), self.ahead)
        return seconds if self.stretch is None else seconds * self.stretch

    def worker_seconds(self, conditions: Conditions) -> dict[int, Floats]:
        """Return the seconds for which a step keeps each worker busy."""
        busy = _computing(self.work, conditions)
        return {worker: seconds + self.host.get(worker, 0.0) for worker, seconds in busy.items()}

    def direction_seconds(self, conditions: Conditions) -> dict[Direction, Floats]:
        """Return the seconds for which a step keeps each direction of a link busy."""
        return _carrying(self.bits, conditions)

    def round_trip_seconds(self, conditions: Conditions) -> Floats:
        """Return the longest round trip of a link that a step uses, shape (n,); 0 if it uses none."""
        paths = self.paths
        longest = np.zeros(len(paths.waited))
        for (near, far), halves in paths.halves.items():
            longest = np.maximum(longest, np.where(halves > 0.0, conditions.trips[near, far], 0.0))
        return longest if paths.starts is None else np.maximum.reduceat(longest, paths.starts)

    def sends(self) -> Bools:
        """Tell which of them use a link at all."""
        uses: Bools = np.zeros(len(self), dtype=np.bool_)
        for bits in self.bits.values():
            uses |= bits > 0.0
        return uses

    def measured(self) -> Bools:
        """Tell which were wholly measured."""
        columns = [*self.work.values(), *self.host.values(), *self.bits.values()]
        measured: Bools = np.isfinite(np.sum(columns, axis=0))
        return measured

    @cached_property
    def _order(self) -> Sequence[int | Direction]:
        """Return the parts of a path, as a batch meets them in a chain: one order for all, so that equal sums have
        equal last bits."""
        workers = len(self.paths.work) and max(self.paths.work) + 1
        up: dict[tuple[int, ...], int | Direction] = {(worker, 0): worker for worker in self.paths.work}
        for near, far in self.paths.bits:
            up[(near, 1, far) if near < far else (workers, -near, -far)] = (near, far)
        return [up[place] for place in sorted(up)]

    def take(self, index: ArrayLike) -> "Loads":
        """Return the rows that a mask or an array of indices picks."""
        rows = np.arange(len(self))[np.asarray(index)]
        paths = self.paths
        if paths.starts is None:
            picked, starts = rows, None
        else:
            ends = np.append(paths.starts[1:], len(paths.waited))
            picked = np.concatenate([np.arange(paths.starts[row], ends[row]) for row in rows] or [rows])
            starts = np.cumsum([0, *(ends[rows] - paths.starts[rows])[:-1]])
        return Loads(
            self.ahead[rows],
            _picked(self.work, rows),
            _picked(self.host, rows),
            _picked(self.bits, rows),
            Paths(
                starts,
                _picked(paths.work, picked),
                paths.waited[picked],
                _picked(paths.bits, picked),
                _picked(paths.halves, picked),
            ),
            None if self.stretch is None else self.stretch[rows],
        )


def joined(loads: Sequence[Loads]) -> Loads:
    """Join the rows of all, in this order. A part that one of them does not use takes no time."""
    if len(loads) == 1:
        return loads[0]
    rows = [len(each) for each in loads]
    lengths = [len(each.paths.waited) for each in loads]
    starts = None
    if any(each.paths.starts is not None for each in loads):
        each_starts = [np.arange(len(one)) if one.paths.starts is None else one.paths.starts for one in loads]
        begins = np.cumsum([0, *lengths[:-1]])
        starts = np.concatenate([begin + one for begin, one in zip(begins, each_starts, strict=True)])
    return Loads(
        np.concatenate([each.ahead for each in loads]),
        _joined([each.work for each in loads], rows),
        _joined([each.host for each in loads], rows),
        _joined([each.bits for each in loads], rows),
        Paths(
            starts,
            _joined([each.paths.work for each in loads], lengths),
            np.concatenate([each.paths.waited for each in loads]),
            _joined([each.paths.bits for each in loads], lengths),
            _joined([each.paths.halves for each in loads], lengths),
        ),
        None
        if all(each.stretch is None for each in loads)
        else np.concatenate([np.ones(len(each)) if each.stretch is None else each.stretch for each in loads]),
    )


def steady_seconds(longest: Floats | float, total: Floats | float, ahead: int | Ints) -> Floats:
    """Return the seconds per step once the pipeline is full: Eq. 12 over an endless horizon, max(T_max, T_sum / (K + 1)).

    ahead: K, one for all or one for each.
    """
    return np.maximum(longest, total / (ahead + 1))


def pipeline_seconds(times: Times, staleness: int | Ints, horizon_steps: int) -> Floats:
    """Return the seconds of `horizon_steps` steps with staleness K (Eq. 12), broadcast against K when it is an array.

    K = 0 gives Eq. 10, K >= horizon - 1 gives Eq. 11. The result never rises with K.
    """
    longest, total = times
    groups = -(-horizon_steps // (staleness + 1))
    waiting = np.maximum(0.0, total - (staleness + 1) * longest)
    return (horizon_steps - 1) * longest + total + (groups - 1) * waiting


def _computing(work: Mapping[int, Floats], at: Conditions) -> dict[int, Floats]:
    return {worker: seconds * at.factors[..., worker, None] for worker, seconds in work.items()}


def _carrying(bits: Mapping[Direction, Floats], at: Conditions) -> dict[Direction, Floats]:
    return {
        (sender, receiver): each / at.rates[..., sender, receiver, None] for (sender, receiver), each in bits.items()
    }


def _slowed(parts: dict[Key, Floats], slower: Slower) -> dict[Key, Floats]:
    return {key: seconds * slower[key] if key in slower else seconds for key, seconds in parts.items()}


def _picked(columns: Mapping[Key, Floats], rows: Ints) -> dict[Key, Floats]:
    return {key: column[rows] for key, column in columns.items()}


def _joined(each: Sequence[Mapping[Key, Floats]], lengths: Sequence[int]) -> dict[Key, Floats]:
    keys = dict.fromkeys(key for columns in each for key in columns)
    return {
        key: np.concatenate([columns.get(key, np.zeros(length)) for columns, length in zip(each, lengths, strict=True)])
        for key in keys
    }
