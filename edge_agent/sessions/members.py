"""The trainers of a session: present, needed, absent, or left out; and the candidates, which may become such."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import structlog

from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.client.trainer import TrainerClient
from shared.placement import AGENT, Placement, held_blocks

_log = structlog.get_logger(__name__)
LEAST_OPENING_SECONDS, LONGER = 10.0, 10.0
"""Time in which any trainer has to open a session, where others wait for that beside training, and how many times as long as
the first ones it may take."""


class Members(Mapping[str, TrainerWorker]):
    """The trainers with which a session continues, by name. Used on the event loop."""

    def __init__(
        self,
        trainers: Mapping[str, TrainerWorker],
        left_out: Collection[str],
        placement: Placement,
        candidates: Mapping[str, TrainerClient],
    ) -> None:
        """trainers: all of the session. placement: the one in force. candidates: the other trainers that are configured."""
        self._there = {name: trainer for name, trainer in trainers.items() if name not in left_out}
        self.left_out = {name: trainer for name, trainer in trainers.items() if name in left_out}
        """Trainers without which the session continues, because they were away for too long."""
        self.needed = [trainer.name for trainer in self.holders(placement)]
        """Trainers without which the session cannot continue."""
        self.absent: set[str] = set()
        """Trainers without blocks that lack the placement in force, because they did not answer the last question."""
        self.behind: set[str] = set()
        """Trainers that have no blocks under the placement in force, and do not know it yet."""
        self.refusing: set[str] = set()
        """Trainers that refuse replicas of blocks whose weights could tell raw samples."""
        self.candidates = dict(candidates)
        """Configured trainers that have nothing of the session."""
        self.stand_ins: dict[str, str] = {}
        """Trainers that stand in for others, by the names of these, under which they have the session."""
        self.opening_seconds: float | None = None
        """Time that the slowest trainer took to open the session; None in a process that has resumed it."""
        self._own_clients: dict[str, TrainerClient] = {}
        """Calls to the trainers for which others stand in."""
        self.keeper: str | None = None
        """Trainer without blocks that keeps the replicas of one that is alone, and would take over."""
        self.stalled: set[str] = set()
        """Trainers that answer, and have held up a step for too long. Those that were left for it get blocks by operators."""
        self.ranking: Sequence[str] = ()
        """Configured trainers by what each would be worth, the best first; empty while nobody has compared them."""

    def __getitem__(self, name: str) -> TrainerWorker:
        return self._there[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._there)

    def __len__(self) -> int:
        return len(self._there)

    @property
    def everybody(self) -> dict[str, TrainerWorker]:
        """Return all trainers, those that are left out included."""
        return self._there | self.left_out

    @property
    def opening_limit_seconds(self) -> float | None:
        """Return the time in which another trainer has to open the session; None where its calls alone are bounded."""
        return None if self.opening_seconds is None else max(LEAST_OPENING_SECONDS, LONGER * self.opening_seconds)

    def ranked(self, names: Iterable[str]) -> list[str]:
        """Sort trainers by the ranking, and keep the order of those that are not in it: they come last."""
        places = {name: place for place, name in enumerate(self.ranking)}
        return sorted(names, key=lambda name: places.get(name, len(places)))

    def client(self, name: str) -> TrainerClient:
        """Return the calls to a configured trainer, whatever it is to the session."""
        return self.candidates[name] if name in self.candidates else self.everybody[name].client

    def holders(self, placement: Placement) -> list[TrainerWorker]:
        """List the trainers that hold blocks under a placement. No other trainer has a state that counts."""
        return [trainer for name, trainer in self._there.items() if held_blocks(placement, name)]

    def are_present(self, names: Iterable[str]) -> bool:
        """Tell whether these trainers are members that have the placement in force."""
        return all(name in self._there and name not in self.absent | self.behind for name in names)

    def admit(self, trainer: TrainerWorker) -> None:
        """Have a trainer as a present member, whatever it was before."""
        self.candidates.pop(trainer.name, None)
        self.left_out.pop(trainer.name, None)
        self.absent.discard(trainer.name)
        self.stalled.discard(trainer.name)
        self.behind.discard(trainer.name)
        self._there[trainer.name] = trainer

    def release(self, name: str) -> None:
        """Have a member as a candidate again."""
        for marked in (self.absent, self.behind, self.refusing):
            marked.discard(name)
        trainer = self._there.pop(name)
        self.candidates[name] = self._own_clients.pop(name, trainer.client)
        self.stand_ins.pop(name, None)

    def stand_in(self, trainer: TrainerWorker, other: str) -> None:
        """Have another trainer as the member of this name."""
        self._own_clients.setdefault(trainer.name, self._there[trainer.name].client)
        self._there[trainer.name] = trainer
        self.stand_ins[trainer.name] = other
        self.stalled.discard(trainer.name)

    def own_client(self, name: str) -> TrainerClient | None:
        """Return the calls to a trainer for which another one stands in; None where none does."""
        return self._own_clients.get(name)

    def leave_out(self, names: Collection[str]) -> None:
        """Continue without these trainers, from a checkpoint that others have."""
        for name in names:
            trainer = self.left_out[name] = self._there.pop(name)
            trainer.client = self._own_clients.pop(name, trainer.client)
            self.stand_ins.pop(name, None)
        self.needed = [name for name in self.needed if name in self._there]

    def may_miss(self, name: str, placement: Placement) -> bool:
        """Tell whether a worker is a trainer without blocks under a placement."""
        return name in self._there and not held_blocks(placement, name)

    def refuse_replicas(self, name: str, reason: str) -> None:
        """Ask a trainer for no more replicas of blocks whose weights could tell raw samples."""
        self.refusing.add(name)
        _log.warning("a trainer keeps no replicas that could tell raw samples", trainer=name, reason=reason)

    def miss(self, name: str, reason: str) -> None:
        """Continue without a trainer that has no blocks, until a placement needs it."""
        self.behind.discard(name)
        if name not in self.absent:
            self.absent.add(name)
            _log.warning("a trainer without blocks is away; nothing waits for it", trainer=name, reason=reason)


def newcomers(before: Placement, after: Placement) -> list[str]:
    """List the trainers that have no blocks and will have some, whether they are members or not."""
    return [
        name for name in after.workers if name != AGENT and held_blocks(after, name) and not held_blocks(before, name)
    ]
