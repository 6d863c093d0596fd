"""The order in which callers of one thread are served: first the one that has used it least, not the one that came first.

Start-time fair queueing over accounts. An account that was idle for long has saved nothing up. One that asks again soon
after it was served, as training does whose next batch needs the last gradient, is waited for a moment when others have
used more and their work would take longer than the wait: work cannot be interrupted once it has begun. Such a wait counts
as its use. Knows nothing of threads; times are the caller's, in seconds.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST_WAIT_SECONDS = 0.25
"""Longest time that the thread is kept free for one account that is expected back: its absence costs others that much."""
_LATEST_SHARE = 0.5
"""Weight of the latest sample in the averages of an account."""

T = TypeVar("T")


@dataclass(slots=True)
class _Account(Generic[T]):
    used: float
    """Start of the account's next job on the queue's virtual clock: its use, and the clock when it last came back."""
    jobs: deque[T] = field(default_factory=deque)
    began: float | None = None
    """Time at which its running job began; None while none runs."""
    ended: float | None = None
    """Time at which its last job ended."""
    usual_job: float = 0.0
    """Recent seconds of its jobs; 0 while unknown, and then no job waits for it."""
    usual_absence: float = math.inf
    """Recent seconds from the end of its last job to its asking again."""

    @property
    def idle(self) -> bool:
        return not self.jobs and self.began is None


class FairQueue(Generic[T]):
    """Jobs by account. An account has one job running at a time, in the order of asking."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account[T]] = {}
        self._clock = 0.0
        """Virtual clock: the used time of the caller that was served last."""
        self._waiting: tuple[_Account[T], float] | None = None
        """Account that the queue waits for, and the time up to which that wait was counted."""

    def __len__(self) -> int:
        return sum(len(account.jobs) for account in self._accounts.values())

    def put(self, name: str, job: T, now: float) -> None:
        """An account asks for a job."""
        self._count_wait(now)
        account = self._accounts.setdefault(name, _Account[T](self._clock))
        if account.idle:
            account.used = max(account.used, self._clock)
            if account.ended is not None:
                account.usual_absence = _blend(account.usual_absence, now - account.ended)
        account.jobs.append(job)

    def drop(self, name: str, job: T) -> None:
        """The job is no longer wanted; nothing happens when it is running or done."""
        account = self._accounts.get(name)
        if account is not None and job in account.jobs:
            account.jobs.remove(job)

    def is_wanted(self, name: str) -> bool:
        """Tell whether another account asks, or has asked lately and may be waited for, or a job of this one waits."""
        return len(self._accounts) > 1 or bool(self._accounts[name].jobs)

    def clear(self) -> list[T]:
        """Drop all jobs that wait; these are they."""
        dropped = [job for account in self._accounts.values() for job in account.jobs]
        for account in self._accounts.values():
            account.jobs.clear()
        return dropped

    def take(self, now: float) -> tuple[str, T] | float | None:
        """The job to run now and its account; or the seconds to serve nobody unless one asks; or None while there is none."""
        self._count_wait(now)
        ready = [name for name, account in self._accounts.items() if account.jobs and account.began is None]
        if not ready:
            return None
        name = min(ready, key=lambda each: self._accounts[each].used)
        account = self._accounts[name]
        if (expected := self._expected(account, now)) is not None:
            self._waiting = expected[0], now
            return expected[1]
        self._clock = max(self._clock, account.used)
        account.began = now
        job = account.jobs.popleft()
        self._forget_idle(now)
        return name, job

    def ended(self, name: str, now: float) -> None:
        """The running job of an account has ended."""
        account = self._accounts[name]
        assert account.began is not None, f"no job of {name} runs"
        seconds = now - account.began
        account.used += seconds
        account.usual_job = (
            account.usual_job + _LATEST_SHARE * (seconds - account.usual_job) if account.usual_job else seconds
        )
        account.began, account.ended = None, now
        if account.jobs:
            account.usual_absence = _blend(account.usual_absence, 0.0)

    def _expected(self, candidate: _Account[T], now: float) -> tuple[_Account[T], float] | None:
        """A caller that has used less than the candidate and is worth waiting for, and how long it may take to come back."""
        patience = min(candidate.usual_job, MOST_WAIT_SECONDS)
        for account in self._accounts.values():
            if not account.idle or account.ended is None or account.used >= candidate.used:
                continue
            if account.usual_absence > patience:
                continue
            if (seconds := account.ended + patience - now) > 0:
                return account, seconds
        return None

    def _count_wait(self, now: float) -> None:
        if self._waiting is not None:
            account, since = self._waiting
            account.used += now - since
            self._waiting = None

    def _forget_idle(self, now: float) -> None:
        """Drop accounts that would be served as new ones would."""
        for name, account in list(self._accounts.items()):
            away = account.ended is None or now - account.ended > MOST_WAIT_SECONDS
            if account.idle and away and account.used <= self._clock:
                del self._accounts[name]


def _blend(usual: float, latest: float) -> float:
    """An average that follows the latest. A sample counts as twice the longest wait at most."""
    latest = min(latest, 2 * MOST_WAIT_SECONDS)
    return latest if math.isinf(usual) else usual + _LATEST_SHARE * (latest - usual)
