"""The trainers of a session: present, needed, absent, or left out."""

from collections.abc import Collection, Iterator, Mapping

import structlog

from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.placement import Placement, held_blocks

_log = structlog.get_logger(__name__)


class Members(Mapping[str, TrainerWorker]):
    """The trainers with which a session continues, by name. Used on the event loop."""

    def __init__(self, trainers: Mapping[str, TrainerWorker], left_out: Collection[str], placement: Placement) -> None:
        """trainers: all of the session. placement: the one in force."""
        self._there = {name: trainer for name, trainer in trainers.items() if name not in left_out}
        self.left_out = {name: trainer for name, trainer in trainers.items() if name in left_out}
        """Trainers without which the session continues, because they were away for too long."""
        self.needed = [trainer.name for trainer in self.holders(placement)]
        """Trainers without which the session cannot continue."""
        self.absent: set[str] = set()
        """Trainers without blocks that lack the placement in force, because they did not answer the last question."""
        self.refusing: set[str] = set()
        """Trainers that refuse replicas of blocks whose weights could tell raw samples."""

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

    def holders(self, placement: Placement) -> list[TrainerWorker]:
        """List the trainers that hold blocks under a placement. No other trainer has a state that counts."""
        return [trainer for name, trainer in self._there.items() if held_blocks(placement, name)]

    def newcomers(self, before: Placement, after: Placement) -> list[str]:
        """List the trainers that have no blocks and will have some, those that are left out included."""
        return [
            name
            for name in after.workers
            if name in self.everybody and held_blocks(after, name) and not held_blocks(before, name)
        ]

    def leave_out(self, names: Collection[str]) -> None:
        """Continue without these trainers, from a checkpoint that others have."""
        for name in names:
            self.left_out[name] = self._there.pop(name)
        self.needed = [name for name in self.needed if name in self._there]

    def let_in(self, name: str) -> None:
        """Take in a trainer that was left out. It is absent until it is joined."""
        self._there[name] = self.left_out.pop(name)
        self._there[name].forget_blocks()
        self.absent.add(name)

    def may_miss(self, name: str, placement: Placement) -> bool:
        """Tell whether a worker is a trainer without blocks under a placement."""
        return name in self._there and not held_blocks(placement, name)

    def refuse_replicas(self, name: str, reason: str) -> None:
        """Ask a trainer for no more replicas of blocks whose weights could tell raw samples."""
        self.refusing.add(name)
        _log.warning("a trainer keeps no replicas that could tell raw samples", trainer=name, reason=reason)

    def miss(self, name: str, reason: str) -> None:
        """Continue without a trainer that has no blocks, until a placement needs it."""
        if name not in self.absent:
            self.absent.add(name)
            _log.warning("a trainer without blocks is away; nothing waits for it", trainer=name, reason=reason)
