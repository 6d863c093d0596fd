"""Devices: how much slower each worker computes than it was measured.

Within a tenth, a mean follows the measurements. A worker that is off by more than that throughout two consecutive windows has
become another device: its factor is then that of the second window. A machine that is busy for some seconds is none: a window
lasts for as long as that. A factor that holds for some blocks and not for others shows that the worker is no longer the
measured device at another speed, so its times must be measured again.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from edge_agent.planning.measurements import Bools, Floats

WINDOW_SECONDS, WINDOW_STEPS = 4.0, 5
"""A window ends after so many seconds, with so many steps at least: fewer tell nothing."""
TOLERANCE = 0.1
"""Part of the expected seconds by which a window may be off."""

THROUGHOUT = 0.75
"""Part of a window's reports that are off where the worker is."""

STEP_TOLERANCE = 0.02
"""Part of a step by which a worker may be off and nobody waits for it: beside a slow link, milliseconds are nothing."""

NEWEST_WEIGHT = 0.2
"""Weight of the newest measurement in the mean."""

FREE_ANSWERS = 3
"""Answers to one worker without the account in the time of proof. One that is quick and slow in turn is followed no more."""


class FreeAnswers:
    """The answers to workers that have become other devices: those that are due, and those that were given."""

    def __init__(self, proof_seconds: float) -> None:
        """proof_seconds: time in which the answers to a worker are counted."""
        self._proof_seconds = proof_seconds
        self.due: set[int] = set()
        """Workers for which today's layout may be wrong."""
        self._given_seconds: dict[int, list[float]] = {}
        """Times of the answers to each."""

    def note_changed(self, workers: Collection[int], seconds: float) -> None:
        """Note that workers have become other devices at this time."""
        for one in workers:
            given = [then for then in self._given_seconds.get(one, []) if seconds - then < self._proof_seconds]
            if len(given) < FREE_ANSWERS:
                self.due.add(one)

    def note_given(self, seconds: float) -> None:
        """Note that all that were due were answered at this time."""
        for worker in self.due:
            self._given_seconds.setdefault(worker, []).append(seconds)
        self.due.clear()


class Devices:
    """The factors of W workers, by place. Knows nothing of layouts: its caller gives the expected seconds."""

    def __init__(self, workers: int) -> None:
        self.off: Floats = np.zeros(workers)
        """Seconds of each worker over its expected ones, in its last whole window, shape (W,); 0 before one."""
        self.misfits: set[int] = set()
        """Workers whose factors did not hold for other blocks, and that are not measured again yet."""
        self._expected_seconds = np.zeros(workers)
        self._steady, self._drift = np.ones(workers), np.ones(workers)
        self._found_at = np.zeros(workers)
        """Expected seconds of the blocks by which the factor of each worker was found; 0 without a factor."""
        self.begin()

    @property
    def factors(self) -> Floats:
        """Return the seconds of each worker over those that were measured before the run, shape (W,)."""
        return self._steady * self._drift

    def begin(self) -> None:
        """Begin windows again, because another layout is in force. The factors stay."""
        workers = len(self._steady)
        self._steps, self._ratios, self._seconds = np.zeros(workers), np.zeros(workers), np.zeros(workers)
        self._looks: list[list[float]] = [[] for _ in range(workers)]
        """Ratios of each worker in the window under way, one a report."""
        self._was_off: Bools = np.zeros(workers, dtype=np.bool_)
        self._has_window: Bools = np.zeros(workers, dtype=np.bool_)
        """True where a window has ended since then, by worker."""

    def take_over(self, worker: int, before: "Devices") -> None:
        """Know of a worker what others know of it, who have it at the same place."""
        for mine, theirs in (
            (self._steady, before._steady),
            (self._drift, before._drift),
            (self._found_at, before._found_at),
        ):
            mine[worker] = theirs[worker]
        self.misfits |= before.misfits & {worker}

    def measured_again(self, worker: int) -> None:
        """Note that a worker's times are those of today's device."""
        self._steady[worker] = self._drift[worker] = 1.0
        self._found_at[worker] = 0.0
        self.misfits.discard(worker)
        self.begin()

    def is_settled(self, step_seconds: float) -> bool:
        """Tell whether no worker seems to be changing: neither its last window nor the one under way is off.

        step_seconds: of today. A worker counts by what it may add to them.
        """
        off = self._most_off()
        return not (
            (off > TOLERANCE * self._steady) & (off * self._expected_seconds > STEP_TOLERANCE * step_seconds)
        ).any()

    def is_usual(self, worker: int) -> bool:
        """Tell whether a worker's steps take what its factor says, in its last window and in the one under way.

        False before a whole window with today's layout.
        """
        return bool(self._has_window[worker] and self._most_off()[worker] <= TOLERANCE * self._steady[worker])

    def _most_off(self) -> Floats:
        """Return by how much each worker's ratio differs from its factor, now or in its last window, shape (W,)."""
        begun = self._steps > 0.0
        ratios = np.divide(self._ratios, self._steps, out=self._steady.copy(), where=begun)
        last = np.where(self._was_off, self.off * self._steady, self._steady)
        most: Floats = np.maximum(np.abs(ratios - self._steady), np.abs(last - self._steady))
        return most

    def note(self, seconds: float, steps: int, work: Mapping[int, float], expected: Mapping[int, float]) -> set[int]:
        """Include the mean seconds of computing in the last steps. Returns the workers that have become other devices.

        seconds: since the last call.

        expected: seconds in the profile for the blocks that each worker runs. 0 or nothing gives no information.
        """
        changed = set()
        self._seconds += seconds
        for worker, taken in work.items():
            if (profiled := expected.get(worker, 0.0)) <= 0.0:
                continue
            self._expected_seconds[worker] = profiled
            ratio = taken / profiled
            off = ratio / self._steady[worker]
            if abs(off - 1.0) <= TOLERANCE:
                self._drift[worker] += NEWEST_WEIGHT * (off - self._drift[worker])
            self._steps[worker] += steps
            self._ratios[worker] += steps * ratio
            if steps:
                self._looks[worker].append(off)
            if self._is_whole(worker) and self._end_window(worker):
                changed.add(worker)
        return changed

    def _is_whole(self, worker: int) -> bool:
        return bool(self._steps[worker] >= WINDOW_STEPS and self._seconds[worker] >= WINDOW_SECONDS)

    def _end_window(self, worker: int) -> bool:
        ratio = self._ratios[worker] / self._steps[worker]
        self.off[worker] = ratio / self._steady[worker]
        is_off = _is_off_throughout(self._looks[worker])
        self._steps[worker] = self._ratios[worker] = self._seconds[worker] = 0.0
        self._looks[worker], self._has_window[worker] = [], True
        has_changed = bool(is_off and self._was_off[worker])
        if has_changed:
            self._note_factor(worker, ratio)
        self._was_off[worker] = is_off and not has_changed
        return has_changed

    def _note_factor(self, worker: int, ratio: float) -> None:
        found_at, now_at = self._found_at[worker], self._expected_seconds[worker]
        is_as_measured = abs(ratio - 1.0) <= TOLERANCE
        if is_as_measured:
            self.misfits.discard(worker)
        elif found_at and abs(now_at / found_at - 1.0) > TOLERANCE:
            self.misfits.add(worker)
        self._steady[worker], self._drift[worker] = ratio, 1.0
        self._found_at[worker] = 0.0 if is_as_measured else now_at


def _is_off_throughout(ratios: Sequence[float]) -> bool:
    """Tell whether nearly all of a window's reports are off, to the same side: some that are do not make a device another."""
    low, high = np.quantile(ratios, (1.0 - THROUGHOUT, THROUGHOUT))
    return bool(low > 1.0 + TOLERANCE or high < 1.0 - TOLERANCE)
