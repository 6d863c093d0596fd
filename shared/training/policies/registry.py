"""The backward policies by name. A new one is a file and its line here."""

from shared.training.policies.policy import BackwardPolicy
from shared.training.policies.replay import Replay
from shared.training.policies.stash import Stash

POLICIES: dict[str, type[BackwardPolicy]] = {
    "replay": Replay,
    "stash": Stash,
}
