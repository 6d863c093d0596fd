"""The family of three tiers: divisions of the layers and samples of a step among them (paper 004)."""

from edge_agent.planning.families.tiers.family import bounded, is_for, listed, neighbours, permits

__all__ = ["bounded", "is_for", "listed", "neighbours", "permits"]
