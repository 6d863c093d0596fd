"""What a stage does with a batch between its forward and the return of its error gradient."""

from shared.training.policies.policy import BackwardPolicy
from shared.training.policies.registry import POLICIES
from shared.training.policies.replay import Replay
from shared.training.policies.stash import Stash

__all__ = ["POLICIES", "BackwardPolicy", "Replay", "Stash"]
