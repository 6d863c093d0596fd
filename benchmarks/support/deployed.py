"""Deployment of two workers, in the three numbers that the agent's settings have."""

from dataclasses import dataclass

from edge_agent.planning import FLOAT32_BITS, Layout, Profile, stacked


@dataclass(frozen=True, order=True)
class Deployed:
    """Cut, K and bits."""

    cut: int
    staleness: int
    bits: int

    @classmethod
    def of(cls, layout: Layout) -> "Deployed":
        """Return the numbers of a layout of two workers."""
        return cls(layout.tiles[0].stop, layout.staleness, (*layout.bits, FLOAT32_BITS)[0])

    def layout(self, profile: Profile) -> Layout:
        """The same as planning has it."""
        return stacked(profile, (self.cut,), self.staleness, (self.bits,))

    def __str__(self) -> str:
        return f"cut {self.cut}, staleness {self.staleness}, {self.bits} bits"
