"""The backward policies by name, and where the class of each lies.

A new one is a file in `shared/training/policies/` and its line here.
"""

POLICIES: dict[str, str] = {
    "replay": "shared.training.policies.replay:Replay",
    "stash": "shared.training.policies.stash:Stash",
}
