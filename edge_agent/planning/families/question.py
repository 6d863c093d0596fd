"""Questions of planning."""

from dataclasses import dataclass, field, replace

from edge_agent.planning.layout import Layout
from edge_agent.planning.profile import Profile
from edge_agent.planning.space import SearchSpace


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
    def is_tiers(self) -> bool:
        """Tell whether there are three workers of which times by samples are known, and all of it may be chosen."""
        return (
            self.profile.by_samples is not None
            and len(self.permitted) == len(self.profile.workers) == 3
            and self.space.cuts is None
        )

    @property
    def is_staleness_open(self) -> bool:
        """Tell whether K may be chosen, within a known limit."""
        return self.space.staleness is None and self.profile.max_staleness is not None

    @property
    def choices_of_staleness(self) -> tuple[int | None, ...]:
        """Return the values of K that can be the best, smallest first; None alone if it may be as large as need be."""
        if self.space.staleness is None and self.profile.max_staleness is None:
            return (None,)
        return tuple(sorted(self.space.best_staleness(self.profile)))

    @property
    def permitted(self) -> tuple[str, ...]:
        """Return the workers that may have blocks, nearest to the samples first."""
        only = self.space.workers
        return tuple(name for name in self.profile.names if only is None or name in only)

    def holding(self, layout: Layout) -> SearchSpace:
        """Return the space of this layout alone."""
        if self.profile.by_samples is not None:
            return replace(self.space, only=layout)
        is_alone = not layout.cuts
        return replace(
            self.space,
            cuts=(len(self.profile),) if is_alone and self.is_pair else layout.cuts,
            bits=tuple(sorted(set(layout.bits))) or self.space.bits,
            widths=layout.bits or None,
            workers=None if self.is_pair else frozenset(layout.workers),
            staleness=layout.staleness,
            allow_edge_only=self.space.allow_edge_only or is_alone,
        )
