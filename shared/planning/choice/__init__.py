"""The choice of a trainer: what each would be worth, and when another one is worth the way (paper 003)."""

from shared.planning.choice.best import Best, ChoiceConfig
from shared.planning.choice.candidates import (
    Candidate,
    conditions_for,
    load_candidates,
    parse_candidates,
    stacked_conditions,
)
from shared.planning.choice.edgemove import CYCLE_STEPS, CutClimb, EdgeMove, first_cut
from shared.planning.choice.policy import Move, Policy, Seen
from shared.planning.choice.prospects import DEVICE, Prospects, Today, Weighed
from shared.planning.choice.ranking import CandidateCosts, Ranked, rank

__all__ = [
    "CYCLE_STEPS",
    "DEVICE",
    "Best",
    "Candidate",
    "CandidateCosts",
    "ChoiceConfig",
    "CutClimb",
    "EdgeMove",
    "Move",
    "Policy",
    "Prospects",
    "Ranked",
    "Seen",
    "Today",
    "Weighed",
    "conditions_for",
    "first_cut",
    "load_candidates",
    "parse_candidates",
    "rank",
    "stacked_conditions",
]
