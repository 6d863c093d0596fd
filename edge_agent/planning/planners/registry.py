"""The planners by name. A new planner is a file of its own, its name among those of `planner_names`, and its line here."""

from edge_agent.planner_names import ACCURATE, GREEDY
from edge_agent.planning.planners.accurate import accurate
from edge_agent.planning.planners.greedy import greedy
from edge_agent.planning.planners.plan import Planner

PLANNERS: dict[str, Planner] = {
    ACCURATE: accurate,
    GREEDY: greedy,
}
