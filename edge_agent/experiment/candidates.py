"""Candidates: several trainers of which one at a time has the blocks behind the cut."""

from edge_agent.config import EdgeConfig
from edge_agent.planner_names import BEST, FIXED
from edge_agent.planning import load_profile
from shared.errors import ConfigError


def has_candidates(config: EdgeConfig) -> bool:
    """Tell whether several trainers are candidates for one cut: no placement, profile or group says which blocks each has.

    A profile of two workers is of the device and any of them. Where it is still to be measured, nobody knows of how many it
    will be, and there are none. Raises PlanError for a profile with an error.
    """
    if len(config.all_trainers) < 2 or config.placement.given or config.member is not None:
        return False
    path = config.engine.profile
    return path is None or (path.is_file() and len(load_profile(path).workers) == 2)


def policy_of(config: EdgeConfig) -> str:
    """Return the policy that chooses among candidates; `fixed` without any. Raises ConfigError for one that is impossible."""
    policy = config.choice.policy
    if not has_candidates(config):
        if policy in (None, FIXED):
            return FIXED
        raise ConfigError(
            f'choice.policy is "{policy}" and engine.profile is of more than two workers, which plans what each of them has; '
            "measure the device and one trainer with edge-agent profile, or leave choice.policy out"
        )
    if policy is None:
        return FIXED if config.engine.profile is None else BEST
    return policy
