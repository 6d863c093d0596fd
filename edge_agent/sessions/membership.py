"""The membership of a session: what each configured trainer is to it. Knows no network and no clock.

Each trainer has one status, and methods of `Membership` alone change it:

| from \\ to | needed | present | behind | absent | left out | candidate |
|---|---|---|---|---|---|---|
| needed | - | - | `need` others | - | `leave_out` | - |
| present | `need` | - | - | `miss` | `leave_out` | `release` |
| behind | `need` | `admit`, `note_told` | - | `miss` | `leave_out` | `release` |
| absent | `need` | `admit`, `note_told` | - | - | `leave_out` | `release` |
| left out | - | `admit` | - | - | - | - |
| candidate | - | `admit` | - | - | - | - |
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.client.trainer import TrainerClient
from shared.placement import AGENT, Placement, held_blocks

_log = structlog.get_logger(__name__)
LEAST_OPENING_SECONDS, LONGER = 10.0, 10.0
"""Time in which any trainer has to open a session, where others wait for that beside training, and how many times as long as
the first ones it may take."""


class MemberStatus(Enum):
    """Statuses of a trainer in a session. The first four are those of members."""

    NEEDED = "needed"
    """The run waits for it: it has blocks, or will have them once all have gone back to a checkpoint."""
    PRESENT = "present"
    """It has no blocks, and may get some."""
    BEHIND = "behind"
    """It had blocks, and does not know yet that it has none."""
    ABSENT = "absent"
    """It has no blocks, and did not answer the last question. Nobody waits for it, or asks it before a placement names it."""
    LEFT_OUT = "left out"
    """The session continues without it, because it was away, or held a step up, for too long."""
    CANDIDATE = "candidate"
    """It has nothing of the session."""


MEMBERS = frozenset({MemberStatus.NEEDED, MemberStatus.PRESENT, MemberStatus.BEHIND, MemberStatus.ABSENT})


@dataclass(slots=True)
class _Trainer:
    """A configured trainer, with all that is known of it whatever its status."""

    client: TrainerClient
    """Calls to the trainer itself."""
    status: MemberStatus
    worker: TrainerWorker | None
    """Its part in the session; None for a candidate."""
    stand_in: str | None = None
    """Trainer that has the session under the name of this one."""
    has_stalled: bool = False
    """True if it answers, and has held up a step for too long."""
    refuses_raw: bool = False
    """True if it refuses replicas of blocks whose weights could tell raw samples."""


class Membership(Mapping[str, TrainerWorker]):
    """The configured trainers of one session. As a mapping it has the members, by name. Used on the event loop."""

    def __init__(
        self,
        workers: Mapping[str, TrainerWorker],
        left_out: Collection[str],
        placement: Placement,
        candidates: Mapping[str, TrainerClient],
        opening_seconds: float | None = None,
    ) -> None:
        """workers: the trainers of the session, those that are left out too. placement: in force. candidates: the others.

        opening_seconds: time that the slowest trainer took to open the session; None in a process that has resumed it.
        """
        self._trainers = {
            name: _Trainer(worker.client, MemberStatus.LEFT_OUT if name in left_out else MemberStatus.PRESENT, worker)
            for name, worker in workers.items()
        }
        for name, client in candidates.items():
            self._trainers[name] = _Trainer(client, MemberStatus.CANDIDATE, None)
        self.need(name for name in self if held_blocks(placement, name))
        self._keeper: str | None = None
        self._opening_seconds = opening_seconds
        self.ranking: Sequence[str] = ()
        """Configured trainers by what each would be worth, the best first; empty while nobody has compared them."""

    def __getitem__(self, name: str) -> TrainerWorker:
        trainer = self._trainers[name]
        if trainer.worker is None or trainer.status not in MEMBERS:
            raise KeyError(name)
        return trainer.worker

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, trainer in self._trainers.items() if trainer.status in MEMBERS])

    def __len__(self) -> int:
        return sum(trainer.status in MEMBERS for trainer in self._trainers.values())

    def status(self, name: str) -> MemberStatus:
        """Return what a configured trainer is to the session."""
        return self._trainers[name].status

    def named(self, status: MemberStatus) -> list[str]:
        """List the trainers with a status."""
        return [name for name, trainer in self._trainers.items() if trainer.status is status]

    @property
    def needed(self) -> list[str]:
        """List the trainers without which the session cannot continue."""
        return self.named(MemberStatus.NEEDED)

    @property
    def left_out(self) -> list[str]:
        """List the trainers without which the session continues."""
        return self.named(MemberStatus.LEFT_OUT)

    @property
    def candidates(self) -> list[str]:
        """List the configured trainers that have nothing of the session."""
        return self.named(MemberStatus.CANDIDATE)

    @property
    def everybody(self) -> dict[str, TrainerWorker]:
        """Return all trainers that may have something of the session, those that are left out included."""
        workers = ((name, trainer.worker) for name, trainer in self._trainers.items())
        return {name: worker for name, worker in workers if worker is not None}

    @property
    def stand_ins(self) -> dict[str, str]:
        """Return the trainers that stand in for others, by the names of these, under which they have the session."""
        found = ((name, trainer.stand_in) for name, trainer in self._trainers.items())
        return {name: other for name, other in found if other is not None}

    @property
    def stalled(self) -> list[str]:
        """List the trainers that answer, and have held up a step for too long. Only operators give them blocks again."""
        return [name for name, trainer in self._trainers.items() if trainer.has_stalled]

    @property
    def refusing(self) -> list[str]:
        """List the trainers that refuse replicas of blocks whose weights could tell raw samples."""
        return [name for name, trainer in self._trainers.items() if trainer.refuses_raw]

    @property
    def keeper(self) -> str | None:
        """Return the member without blocks that keeps the replicas of one that is alone; None if that is not there."""
        there = {*self.named(MemberStatus.PRESENT), *self.named(MemberStatus.BEHIND)}
        return self._keeper if self._keeper in there else None

    @property
    def opening_limit_seconds(self) -> float | None:
        """Return the time in which another trainer has to open the session; None where its calls alone are bounded."""
        seconds = self._opening_seconds
        return None if seconds is None else max(LEAST_OPENING_SECONDS, LONGER * seconds)

    def ranked(self, names: Iterable[str]) -> list[str]:
        """Sort trainers by the ranking, and keep the order of those that are not in it: they come last."""
        places = {name: place for place, name in enumerate(self.ranking)}
        return sorted(names, key=lambda name: places.get(name, len(places)))

    def client(self, name: str) -> TrainerClient:
        """Return the calls to a configured trainer, or to the one that stands in for it."""
        trainer = self._trainers[name]
        return trainer.client if trainer.worker is None else trainer.worker.client

    def own_client(self, name: str) -> TrainerClient | None:
        """Return the calls to a trainer for which another one stands in; None where none does."""
        trainer = self._trainers[name]
        return None if trainer.stand_in is None else trainer.client

    def holders(self, placement: Placement) -> list[TrainerWorker]:
        """List the members that hold blocks under a placement. No other trainer has a state that counts."""
        return [worker for name, worker in self.items() if held_blocks(placement, name)]

    def are_present(self, names: Iterable[str]) -> bool:
        """Tell whether these trainers are members that have the placement in force."""
        there = {MemberStatus.NEEDED, MemberStatus.PRESENT}
        return all(name in self._trainers and self.status(name) in there for name in names)

    def may_miss(self, name: str) -> bool:
        """Tell whether a worker is a member without which the session continues."""
        return name in self and self.status(name) is not MemberStatus.NEEDED

    def need(self, names: Iterable[str]) -> None:
        """Wait for these members from now on, and for no other one."""
        needed = {*names}
        for name in self:
            if name in needed:
                self._trainers[name].status = MemberStatus.NEEDED
            elif self.status(name) is MemberStatus.NEEDED:
                self._trainers[name].status = MemberStatus.BEHIND

    def note_told(self, names: Iterable[str]) -> None:
        """Note that members without blocks know that they have none."""
        for name in names:
            if self.may_miss(name):
                self._trainers[name].status = MemberStatus.PRESENT

    def miss(self, name: str, reason: str) -> None:
        """Continue without a member that has no blocks, until a placement needs it."""
        assert self.may_miss(name), f"the run waits for {name!r}"
        if self.status(name) is not MemberStatus.ABSENT:
            self._trainers[name].status = MemberStatus.ABSENT
            _log.warning("a trainer without blocks is away; nothing waits for it", trainer=name, reason=reason)

    def admit(self, worker: TrainerWorker) -> None:
        """Have a trainer as a member, whatever it was before."""
        trainer = self._trainers[worker.name]
        trainer.worker, trainer.has_stalled = worker, False
        if trainer.status is not MemberStatus.NEEDED:
            trainer.status = MemberStatus.PRESENT

    def release(self, name: str) -> None:
        """Have a member that has no blocks as a candidate again."""
        assert self.may_miss(name), f"the run waits for {name!r}"
        trainer = self._trainers[name]
        trainer.status, trainer.worker, trainer.stand_in = MemberStatus.CANDIDATE, None, None
        trainer.refuses_raw = False

    def leave_out(self, names: Iterable[str]) -> None:
        """Continue without these members, from a checkpoint that others have."""
        for name in names:
            trainer, worker = self._trainers[name], self[name]
            worker.client = trainer.client
            trainer.status, trainer.stand_in = MemberStatus.LEFT_OUT, None

    def stand_in(self, worker: TrainerWorker, other: str) -> None:
        """Have another trainer, or the same one again, as the member of this name."""
        trainer = self._trainers[worker.name]
        assert trainer.status in MEMBERS, f"nobody stands in for {worker.name!r}"
        trainer.worker, trainer.has_stalled = worker, False
        trainer.stand_in = None if other == worker.name else other

    def appoint(self, name: str | None) -> None:
        """Have this member, or none, as the keeper of replicas."""
        self._keeper = name

    def refuse_replicas(self, name: str, reason: str) -> None:
        """Ask a trainer for no more replicas of blocks whose weights could tell raw samples."""
        self._trainers[name].refuses_raw = True
        _log.warning("a trainer keeps no replicas that could tell raw samples", trainer=name, reason=reason)

    def note_stall(self, name: str) -> None:
        """Note that a trainer answers, and has held up a step for too long."""
        self._trainers[name].has_stalled = True

    def note_progress(self) -> None:
        """Note that steps are done: nobody that is needed holds them up."""
        for name in self.needed:
            self._trainers[name].has_stalled = False


def newcomers(before: Placement, after: Placement) -> list[str]:
    """List the trainers that have no blocks and will have some, whether they are members or not."""
    return [
        name for name in after.workers if name != AGENT and held_blocks(after, name) and not held_blocks(before, name)
    ]
