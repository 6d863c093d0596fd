"""Policies for a batch in a stage, between its forward and the return of its error gradient."""

from pkgutil import resolve_name

from shared.registry import POLICIES
from shared.training.policies.kept_graph import KeptGraph
from shared.training.policies.policy import BackwardPolicy
from shared.training.policies.replay import Replay
from shared.training.policies.stash import Stash

__all__ = ["BackwardPolicy", "KeptGraph", "Replay", "Stash", "policy_by_name", "policy_of_stage"]


def policy_by_name(name: str) -> type[BackwardPolicy]:
    """The class of one of `POLICIES`."""
    kind: type[BackwardPolicy] = resolve_name(POLICIES[name])
    return kind


def policy_of_stage(name: str, staleness: int, *, ends_model: bool) -> type[BackwardPolicy]:
    """The class for a stage of a run. name: one of `POLICIES`. ends_model: whether it has the last block."""
    # From the last block the way goes straight back, so nothing changes the weights before.
    weights_stay = ends_model or staleness == 0
    return KeptGraph if weights_stay else policy_by_name(name)
