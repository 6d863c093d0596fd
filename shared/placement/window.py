"""The window of steps under way at one worker: its progress and that of the others, and the next permitted steps. Pure.

A step begins at a worker, is answered once the worker has made all that others wait for, is cleared once another may begin in
its place, and is done after its last segment: between the two it waits for new weights of shared blocks, and for no more. Each
count rises by one step at a time and belongs to one thread; any thread may read it. So a reader sees the state of now or of a
moment ago, and a bound that holds for it holds now.
"""

from shared.placement.derived import Crossing
from shared.placement.step_plan import StepPlan
from shared.placement.tiles import Cargo

MOST_UNREPORTED = 1024
"""Largest number of steps that may begin beyond the oldest of which not every report is heard: many more than wait for a
message."""


class Window:
    """The steps of one worker under one placement.

    The thread that computes calls `begin`, `answer`, `clear` and `end`, and the event loop calls `tell`, `hear` and `move_to`.
    """

    def __init__(self, plan: StepPlan, worker: str, first_step: int = 0, life: int = 0) -> None:
        """first_step: the first step of all workers under this placement, or of this one in a life after its first.

        life: session term in which this worker has begun again with nothing; 0 where it never did. If weights come to it,
        those of the step before are then the first.
        """
        self.plan = plan
        self.worker = worker
        self.first = first_step
        """First step that is done here."""
        self.ahead = plan.ahead
        """Number of steps that may have begun beyond the oldest under way: K, wherever anything can be stale."""
        self.begun = first_step
        """Step that begins next here; where no samples enter, the first for which nothing has come but samples ahead."""
        self.fed = first_step
        """Step whose samples are taken next here, where samples enter: they may be taken before the step begins."""
        self.answered = first_step
        """First step for which others may wait for this worker."""
        self.cleared = first_step
        """First step in whose place no other may begin here."""
        self.life = life
        self.done = first_step - (life > 0 and plan.takes_weights(worker))
        """First step that this worker has not done."""
        self.told = first_step
        """First step that the event loop does not know to be done here: a moment behind `done`."""
        heard = plan.reports_heard(worker)
        self._others = {name: first_step for names in heard.values() for name in names}
        """First step that is not reported as done, by worker whose reports come here."""
        self._reported = first_step if self._others else None
        """First step that not every one of them has reported; None where none reports."""
        self._waits_for_reports = worker in plan.unaware
        self._stateless = tuple(name for name in self._others if name in plan.stateless)
        """Others that may begin again; see `admitted`."""
        sources = {source.worker for source in plan.placement.sources}
        self._lead = None if worker not in sources else 0 if len(sources) == 1 else self.ahead + 1 + plan.runs_ahead
        """Number of steps that another worker may have done and that have not begun here; None where none begins here."""

    # Admission.

    @property
    def admitted(self) -> int:
        """Return the first step that may not begin now, where samples enter.

        Their samples may be taken `StepPlan.samples_ahead` steps before.
        """
        most, oldest = self.plan.most_under_way, self._oldest if self._waits_for_reports else self.cleared
        admitted = min(self.done + most, oldest + self.ahead + 1)
        if self._reported is not None:
            admitted = min(admitted, self._reported + MOST_UNREPORTED)
        # So the steps that a worker without a state may have to do again are those of which its peers keep what it needs.
        for name in self._stateless:
            admitted = min(admitted, self._others[name] + most)
        return admitted

    @property
    def repeated(self) -> int:
        """Return the oldest step that a worker without a state may not have done. Where samples enter."""
        return max(self.first, self.begun - self.plan.most_under_way)

    @property
    def latest(self) -> int:
        """Return the latest step of which anything may come to this worker, beside samples and labels ahead."""
        latest = self.answered + self.ahead
        if self.life:  # others may be as far ahead of one that has lost all as `repeated` says
            latest = max(latest, max(self.done, self.first) + self.plan.most_under_way + self.plan.runs_ahead - 1)
        return latest

    def may_be_done_elsewhere(self, step: int) -> bool:
        """Tell whether another worker can have done `step`, as far as this one knows by its own samples."""
        return self._lead is None or step < (self.fed if self.plan.runs_ahead else self.begun) + self._lead

    def next_of(self, worker: str) -> int:
        """Return the first step that a worker whose reports come here has not reported as done."""
        return self._others[worker]

    def first_of(self, crossing: Crossing) -> int:
        """Return the first step of something that comes to this worker. Asked with nothing under way."""
        return self.done if crossing.cargo is Cargo.WEIGHTS else self.first

    # The steps under way.

    @property
    def under_way(self) -> range:
        """Return the steps that have begun here and are not done."""
        done = self.done  # read before what can only be ahead of it
        return range(done, self.begun)

    @property
    def held_up(self) -> int:
        """Count the batches that have begun and hold up others, where samples enter.

        They are K + 1 at most, wherever K bounds anything.
        """
        oldest = self._oldest
        return self.begun - oldest

    @property
    def settled(self) -> int:
        """Return the first step that not every worker has done, as far as the event loop knows."""
        return self.told if self._reported is None else min(self.told, self._reported)

    @property
    def owed(self) -> int | None:
        """Return the oldest step that some worker has still to do; None with nothing under way."""
        settled = self.settled
        return settled if settled < self.begun else None

    @property
    def unreported(self) -> tuple[str, ...]:
        """Return the workers that are the furthest behind of those whose reports come here."""
        return tuple(name for name, step in self._others.items() if step == self._reported)

    @property
    def _oldest(self) -> int:
        """The oldest step under way, as far as a batch that begins has to wait for it."""
        cleared = self.cleared
        return min(cleared, self._reported) if self._waits_for_reports and self._reported is not None else cleared

    # Progress.

    def feed(self, step: int) -> None:
        """Count the samples of a step as taken."""
        assert step == self.fed, f"the samples of step {self.fed} are next"
        self.fed = step + 1

    def begin(self, step: int) -> None:
        """Count a step as begun."""
        assert step == self.begun, f"step {self.begun} begins next"
        self.begun = step + 1

    def answer(self, step: int) -> None:
        """Count a step as answered: one more may come, though this one may not have updated yet."""
        assert step == self.answered < self.begun, f"step {self.answered} is answered next"
        self.answered = step + 1

    def clear(self, step: int) -> None:
        """Count a step as one in whose place another may begin."""
        assert step == self.cleared < self.answered, f"step {self.cleared} is cleared next"
        self.cleared = step + 1

    def end(self, step: int) -> None:
        """Count a step as done here."""
        assert step == self.done < self.begun, f"step {self.done} ends next"
        self.answered = max(self.answered, step + 1)
        self.cleared = max(self.cleared, step + 1)
        self.done = step + 1

    def tell(self, step: int) -> None:
        """Count a step as one that the event loop knows to be done here."""
        assert step == self.told < self.done, f"step {self.told} is told next"
        self.told = step + 1

    def hear(self, worker: str, step: int) -> None:
        """Count a step as done at a worker whose reports come here."""
        assert step == self._others[worker], f"step {self._others[worker]} of {worker!r} is next"
        self._others[worker] = step + 1
        self._reported = min(self._others.values())

    def unhear(self, worker: str, step: int) -> None:
        """Wait for the reports of a worker from this step on once more, because it has begun again with it."""
        self._others[worker] = min(step, self._others[worker])
        self._reported = min(self._others.values())

    def move_to(self, step: int) -> None:
        """Go on with `step`, with nothing under way: the others have done all before it without this worker."""
        assert not self.under_way, "nothing is under way"
        self.first = self.done = self.cleared = self.answered = self.begun = self.fed = self.told = step
