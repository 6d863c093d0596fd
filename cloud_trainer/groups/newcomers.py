"""The ranks that are about to join a group: each gets a promise that steps wait for it, and the promise lapses.

A rank that joins asks every trainer for the first step that can wait for it, takes the largest, and tells that to all. In
between, no trainer does a step that it has promised to wait with, so that all count the rank from the same step on. A rank that
says nothing more is no member, and nobody waits for it once its promise has lapsed. Its subject gets no other promise for some
times as long as the group has waited, more each time, so that asking again and again costs a group a few percent of its time.
"""

import time
from typing import NamedTuple

from cloud_trainer.groups.group import Group, Merged
from cloud_trainer.groups.merging import Merging
from cloud_trainer.groups.refusals import NotNowError
from shared.errors import ConfigError, ProtocolError

PROMISE_SECONDS = 10.0
"""Time for which a promise holds: longer than the answers of all trainers take. To ask again makes it no longer."""
FIRST_REST, LONGEST_REST = 2, 32
"""Times as long as a promise has held for which its subject gets no other one: the first time, and at most. It doubles each
time, and begins again for a subject that has asked for nothing for as long as the longest one lasts."""


class _Promise(NamedTuple):
    subject: str
    since: float
    until: float


class _Rest(NamedTuple):
    until: float
    times: int


class Newcomers:
    """The promises of one group. Used on the event loop, one call at a time."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._promises: dict[int, _Promise] = {}
        """By rank."""
        self._rests: dict[str, _Rest] = {}
        """By subject that has had a promise, the time until which it gets no other."""

    async def promise(self, merging: Merging, rank: int, step: int, subject: str) -> int | None:
        """Return the first step that can wait for a rank that has to join; None where it can begin at `step`.

        Raises ConfigError where no step is left for it, and NotNowError where its subject has had a promise not long ago.
        """
        if rank not in self._promises and rank not in merging.ranks:
            self._check_rested(rank, subject)
        first = await merging.on_thread(Group.promise, rank, step)
        if first is None or rank in merging.ranks:
            return first
        if first >= merging.agreement.steps:
            await merging.on_thread(Group.withdraw, rank)
            raise self._none_left(merging, rank)
        now = time.monotonic()
        self._promises.setdefault(rank, _Promise(subject, now, now + PROMISE_SECONDS))
        return first

    async def join(self, merging: Merging, rank: int, step: int) -> list[Merged]:
        """Have a rank take part from a step on; returns the weights that others wait for.

        Raises NotNowError for a step that can wait for nobody any more, ProtocolError for one that no trainer has promised, and
        ConfigError after the last one.
        """
        if merging.ranks.get(rank) == step and merging.step < step:
            return []  # it has joined there before
        if merging.is_done:
            raise self._none_left(merging, rank)
        # No trainer is ahead of another by more than K + 1 steps, or has promised more than the step after its own.
        latest = min(merging.step + merging.agreement.staleness + 2, merging.agreement.steps - 1)
        if step > latest:
            raise ProtocolError(
                f"rank {rank} cannot join group {self._group!r} at step {step}; the group is at {merging.step}, and nobody "
                f"joins after step {latest}"
            )
        if (merged := await merging.on_thread(Group.join, rank, step)) is None:
            raise NotNowError(
                f"group {self._group!r} is at step {merging.step} at this trainer, and goes on without rank {rank} since step "
                f"{step}",
            )
        self._end(rank, time.monotonic())
        return merged

    def _none_left(self, merging: Merging, rank: int) -> ConfigError:
        return ConfigError(
            f"group {self._group!r} does {merging.agreement.steps} steps, of which none is left that rank {rank} could "
            "take part in"
        )

    def lose(self, rank: int) -> bool:
        """Have the promise of a rank lapse now; tells whether there is one."""
        if (promise := self._promises.get(rank)) is None:
            return False
        self._promises[rank] = promise._replace(until=0.0)
        return True

    def forget(self) -> None:
        """Forget all promises: the group begins another life, in which nobody knows of them."""
        self._promises.clear()

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the first promise lapses; None if there is none."""
        return max(min(each.until for each in self._promises.values()) - now, 0.0) if self._promises else None

    async def lapse(self, merging: Merging, now: float) -> list[Merged]:
        """Wait no longer for ranks whose promise has lapsed; returns the weights that others wait for."""
        merged: list[Merged] = []
        for rank in [rank for rank, promise in self._promises.items() if now >= promise.until]:
            self._end(rank, now)
            merged += await merging.on_thread(Group.withdraw, rank)
        return merged

    def _end(self, rank: int, now: float) -> None:
        """Forget the promise of a rank, if there is one; its subject rests."""
        if (promise := self._promises.pop(rank, None)) is not None:
            known = now - LONGEST_REST * PROMISE_SECONDS
            self._rests = {subject: rest for subject, rest in self._rests.items() if rest.until > known}
            before = self._rests.get(promise.subject, _Rest(now, 0))
            times = min(2 * before.times, LONGEST_REST) or FIRST_REST
            self._rests[promise.subject] = _Rest(max(before.until, now + times * (now - promise.since)), times)

    def _check_rested(self, rank: int, subject: str) -> None:
        """Refuse a promise to a subject that has had one not long ago. Raises NotNowError."""
        if (rest := self._rests.get(subject)) is not None and (left := rest.until - time.monotonic()) > 0:
            raise NotNowError(
                f"group {self._group!r} has waited for a newcomer of {subject or 'this caller'!r}, and waits for rank {rank} "
                f"not before {left:.0f} s have passed",
                left,
            )
