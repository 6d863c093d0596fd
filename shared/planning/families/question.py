"""Questions of planning."""

from dataclasses import dataclass, field

from shared.planning.profile import Profile
from shared.planning.space import SearchSpace


@dataclass(frozen=True)
class Question:
    """A model on its workers, and what may be chosen for it."""

    profile: Profile
    space: SearchSpace = field(default_factory=SearchSpace)

    @property
    def is_pair(self) -> bool:
        """Tell whether there are two workers of which the largest K is known."""
        return len(self.profile.workers) == 2 and self.profile.max_staleness is not None

    @property
    def staleness(self) -> int | None:
        """Return K if it is given or bounded; None if it may be as large as need be."""
        return self.profile.max_staleness if self.space.staleness is None else self.space.staleness
