"""The planners by name. A new planner is a file of its own and its line here."""

from shared.planning.planners.edge_only import edge_only
from shared.planning.planners.greedy import greedy
from shared.planning.planners.jointdnn import jointdnn
from shared.planning.planners.plan import Planner

GREEDY, EDGE_ONLY, FIXED = "greedy", "edge-only", "fixed"
"""Names that have a meaning of their own: a run follows `greedy` as the link changes and holds what another planner chose;
`fixed` is no planner, since its deployment is given."""

PLANNERS: dict[str, Planner] = {
    GREEDY: greedy,
    "jointdnn": jointdnn,
    EDGE_ONLY: edge_only,
}
PLANNER_NAMES = (*PLANNERS, FIXED)
"""What a run may be told to follow."""
