"""The ranks that are about to join a group: each gets a promise that steps wait for it, and the promise lapses.

A rank that joins asks every trainer for the first step that can wait for it, takes the largest, and tells that to all. In
between, no trainer does a step that it has promised to wait with, so that all count the rank from the same step on. A rank that
says nothing more is no member, and nobody waits for it once its promise has lapsed.
"""

import time

import grpc

from cloud_trainer.groups.merging import Merging
from shared.errors import ConfigError, ProtocolError
from shared.execution.group import Merged
from shared.transport.rpc.status import StatusError

PROMISE_SECONDS = 10.0
"""Time for which a promise holds: longer than the answers of all trainers take. To ask again makes it no longer."""


class Newcomers:
    """The promises of one group. Used on the event loop, one call at a time."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._until: dict[int, float] = {}
        """By rank, the time at which its promise lapses."""

    async def promise(self, merging: Merging, rank: int, step: int) -> int | None:
        """Return the first step that can wait for a rank that has to join; None where it can begin at `step`.

        Raises ConfigError where no step is left for it.
        """
        first = await merging.promise(rank, step)
        if first is None or rank in merging.ranks:
            return first
        if first >= merging.agreement.steps:
            await merging.withdraw(rank)
            raise ConfigError(
                f"group {self._group!r} does {merging.agreement.steps} steps, of which none is left that rank {rank} could "
                "take part in"
            )
        self._until.setdefault(rank, time.monotonic() + PROMISE_SECONDS)
        return first

    async def join(self, merging: Merging, rank: int, step: int) -> list[Merged]:
        """Have a rank take part from a step on; returns the weights that others wait for.

        Raises StatusError for a step that can wait for nobody any more, and ProtocolError for one that no trainer has promised.
        """
        if merging.ranks.get(rank) == step and merging.step < step:
            return []  # it has joined there before
        # No trainer is ahead of another by more than K + 1 steps, or has promised more than the step after its own.
        latest = min(merging.step + merging.agreement.staleness + 2, merging.agreement.steps - 1)
        if step > latest:
            raise ProtocolError(
                f"rank {rank} cannot join group {self._group!r} at step {step}; the group is at {merging.step}, and nobody "
                f"joins after step {latest}"
            )
        if (merged := await merging.join(rank, step)) is None:
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                f"group {self._group!r} is at step {merging.step} at this trainer, and goes on without rank {rank} since step "
                f"{step}",
            )
        self._until.pop(rank, None)
        return merged

    def lose(self, rank: int) -> bool:
        """Have the promise of a rank lapse now; tells whether there is one."""
        if rank not in self._until:
            return False
        self._until[rank] = 0.0
        return True

    def forget(self) -> None:
        """Forget all promises: the group begins another life, in which nobody knows of them."""
        self._until.clear()

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the first promise lapses; None if there is none."""
        return max(min(self._until.values()) - now, 0.0) if self._until else None

    async def lapse(self, merging: Merging, now: float) -> list[Merged]:
        """Wait no longer for ranks whose promise has lapsed; returns the weights that others wait for."""
        merged: list[Merged] = []
        for rank in [rank for rank, until in self._until.items() if now >= until]:
            del self._until[rank]
            merged += await merging.withdraw(rank)
        return merged
