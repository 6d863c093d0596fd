"""Sharing one thread: each account is served by the time that it has used, whatever the others request."""

import heapq
import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_trainer.sessions.fair_queue import MOST_WAIT_SECONDS, FairQueue
from tests.support.examples import examples


@dataclass
class Asker:
    """An account that requests its next job a fixed time after the last has ended, or always has several jobs waiting."""

    job_seconds: float
    absent_seconds: float = 0.0
    lanes: int = 1
    begins_seconds: float = 0.0
    served: list[float] = field(default_factory=list)
    """Times at which each of its jobs began."""

    @property
    def alone_a_second(self) -> float:
        """Jobs a second without any other account."""
        return 1 / (self.job_seconds + self.absent_seconds)


def simulate(askers, seconds):
    """Run one thread on a clock of the test."""
    queue, now, order = FairQueue(), 0.0, iter(range(10**9))
    arrivals = [(asker.begins_seconds, next(order), name) for name, asker in askers.items() for _ in range(asker.lanes)]
    heapq.heapify(arrivals)

    def arrive(until):
        while arrivals and arrivals[0][0] <= until:
            at, _, name = heapq.heappop(arrivals)
            queue.put(name, object(), at)

    while now < seconds:
        arrive(now)
        taken = queue.take(now)
        if not isinstance(taken, tuple):
            until = seconds if taken is None else now + taken
            assert until > now, "a wait of nothing would turn without end"
            now = min(until, arrivals[0][0]) if arrivals else until
            continue
        name, _ = taken
        asker = askers[name]
        asker.served.append(now)
        end = now + asker.job_seconds
        arrive(end)
        now = end
        queue.ended(name, now)
        heapq.heappush(arrivals, (now + asker.absent_seconds, next(order), name))


def share(asker, seconds):
    """Return an account's pace as a share of its pace alone."""
    begun = [at for at in asker.served if at < seconds]
    return len(begun) / seconds / asker.alone_a_second


def test_a_quick_one_beside_a_slow_one_keeps_two_fifths_of_its_pace():
    quick, slow = Asker(0.005, 0.01), Asker(1.0, 0.01)
    simulate({"quick": quick, "slow": slow}, 60.0)
    assert share(quick, 60.0) >= 0.4
    assert share(slow, 60.0) >= 0.4, "nor does the slow one starve"


@settings(max_examples=examples(40))
@given(
    job=st.floats(0.001, 0.02),
    absent=st.floats(0.0, 0.05),
    slow=st.floats(0.3, 2.0),
    lanes=st.integers(1, 64),
)
def test_however_quick_one_is_and_however_many_lanes_the_slow_one_has(job, absent, slow, lanes):
    quick = Asker(job, absent)
    simulate({"quick": quick, "slow": Asker(slow, 0.0, lanes)}, 40.0)
    assert share(quick, 40.0) >= 0.4


@settings(max_examples=examples(40))
@given(jobs=st.lists(st.floats(0.001, 1.0), min_size=2, max_size=6))
def test_those_who_ask_all_the_time_use_the_same_time_but_for_a_job_each(jobs):
    askers = {f"{number}": Asker(seconds, 0.0, 2) for number, seconds in enumerate(jobs)}
    simulate(askers, 30.0)
    used = [len(asker.served) * asker.job_seconds for asker in askers.values()]
    assert max(used) - min(used) <= 2 * max(jobs) + 1e-6


@settings(max_examples=examples(40))
@given(
    jobs=st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 2.0)), min_size=1, max_size=5),
)
def test_the_thread_is_not_kept_free_for_longer_than_the_bound(jobs):
    askers = {f"{number}": Asker(*each) for number, each in enumerate(jobs)} | {"always": Asker(0.5, 0.0, 2)}
    simulate(askers, 20.0)
    times = sorted((at, asker.job_seconds) for asker in askers.values() for at in asker.served)
    gaps = [later - (at + seconds) for (at, seconds), (later, _) in itertools.pairwise(times)]
    assert max(gaps, default=0.0) <= len(jobs) * MOST_WAIT_SECONDS + 1e-6


def test_idle_time_saves_nothing_up():
    old, late = Asker(0.1, 0.0, 2), Asker(0.1, 0.0, 2, begins_seconds=100.0)
    simulate({"old": old, "late": late}, 120.0)
    while_both = [len([at for at in asker.served if at >= 100.0]) for asker in (old, late)]
    assert abs(while_both[0] - while_both[1]) <= 2


def test_jobs_of_one_account_run_one_after_the_other_in_the_order_of_asking():
    queue = FairQueue()
    for job in "abc":
        queue.put("one", job, 0.0)
    assert queue.take(0.0) == ("one", "a")
    assert queue.take(0.0) is None, "the first has not ended"
    queue.drop("one", "b")
    queue.ended("one", 1.0)
    assert queue.take(1.0) == ("one", "c")
    queue.ended("one", 2.0)
    assert len(queue) == 0
