"""The planners by name. A new planner is a file of its own, its name among those of `planner_names`, and its line here."""

from shared.planner_names import ACCURATE, EDGE_ONLY, GREEDY, JOINTDNN
from shared.planning.planners.accurate import accurate
from shared.planning.planners.edge_only import edge_only
from shared.planning.planners.greedy import greedy
from shared.planning.planners.jointdnn import jointdnn
from shared.planning.planners.plan import Planner

PLANNERS: dict[str, Planner] = {
    ACCURATE: accurate,
    GREEDY: greedy,
    JOINTDNN: jointdnn,
    EDGE_ONLY: edge_only,
}
