"""Questions of planning."""

from dataclasses import dataclass, field, replace

from edge_agent.planner_names import DEFAULT_HORIZON_STEPS
from edge_agent.planning.layout import Layout
from edge_agent.planning.profile import Profile
from edge_agent.planning.space import SearchSpace
from shared.errors import PlanError


@dataclass(frozen=True)
class Question:
    """A model on its workers, and what may be chosen for it. PlanError for a horizon or a cut that cannot be."""

    profile: Profile
    space: SearchSpace = field(default_factory=SearchSpace)
    horizon_steps: int = DEFAULT_HORIZON_STEPS
    """Steps that the deployment of two workers is expected to last."""
    from_cut: int | None = None
    """Today's cut of two workers; None where nothing is deployed yet, and then nothing is moved."""

    def __post_init__(self) -> None:
        """Refuse a horizon of no step, and a cut that the model lacks."""
        if self.horizon_steps < 1:
            raise PlanError(f"the horizon is {self.horizon_steps} steps; it must be 1 or more")
        blocks = len(self.profile)
        if self.from_cut is not None and not 1 <= self.from_cut <= blocks:
            raise PlanError(
                f"the cut to start from is {self.from_cut}; with {blocks} blocks it must be from 1 to {blocks}"
            )

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
