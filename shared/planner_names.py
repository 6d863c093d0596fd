"""What planners are called, and what a plan is made with where nobody says otherwise.

Command lines show these; `shared.planning` has what computes, and needs numpy for it.
"""

GREEDY, JOINTDNN, EDGE_ONLY, FIXED = "greedy", "jointdnn", "edge-only", "fixed"
"""A run follows `greedy` as the link changes and holds what another planner chose; `fixed` is no planner, since its deployment
is given."""
PLANNER_NAMES = (GREEDY, JOINTDNN, EDGE_ONLY, FIXED)
"""What a run may be told to follow."""

BEST_FIXED, LOWER_BOUND = "best-fixed", "lower-bound"
"""What planners are judged by."""
CONTESTANT_NAMES = (*(name for name in PLANNER_NAMES if name != FIXED), BEST_FIXED, LOWER_BOUND)
"""What a simulation of two workers compares."""
PARTITION, EVEN = "partition", "even"
CHAIN_CONTESTANT_NAMES = (PARTITION, EVEN)
"""What a simulation of a chain compares."""

DEFAULT_BITS = (2, 4, 8, 32)
DEFAULT_HORIZON_STEPS = 100
"""Steps that a deployment is expected to last where nothing is known of the link's past."""
