"""The choice of a trainer: what each would be worth, and when another one is worth the way (paper 003)."""

from edge_agent.planning.choice.best import Best
from edge_agent.planning.choice.candidates import (
    Candidate,
    conditions_for,
    load_candidates,
    parse_candidates,
    stacked_conditions,
)
from edge_agent.planning.choice.policy import Move, Seen
from edge_agent.planning.choice.prospects import DEVICE, Prospects, Today, Weighed
from edge_agent.planning.choice.ranking import CandidateCosts, Ranked, rank

__all__ = [
    "DEVICE",
    "Best",
    "Candidate",
    "CandidateCosts",
    "Move",
    "Prospects",
    "Ranked",
    "Seen",
    "Today",
    "Weighed",
    "conditions_for",
    "load_candidates",
    "parse_candidates",
    "rank",
    "stacked_conditions",
]
