"""Planning: the costs of deployments and placements, and the choice of a deployment. Numbers only: no torch, no gRPC, no clock.

The plan is a layout, costed from a profile (profile/) under conditions (cost/). families/ lists the possible layouts.
planners/ chooses one, and engine/ chooses during a run, among layouts and trainers (candidates.py). papers/ has the papers'
algorithms, installed.py finds their rivals. For any placement, operation by operation: operation_costs.py, tasks.py and
placement_simulator.py. Judged over traces: runs/.
"""

from edge_agent.planning.cost import (
    Conditions,
    Loads,
    Times,
    conditions_of,
    loads_of,
    pipeline_seconds,
    simulated_seconds,
    steady_seconds,
)
from edge_agent.planning.engine import (
    BlockRange,
    Decision,
    Engine,
    EngineConfig,
    Observation,
    Outcome,
    Reason,
    Usual,
)
from edge_agent.planning.explained import Parts, parts_of, ranked
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout, feature_routes, layout_of, stacked
from edge_agent.planning.measurements import FLOAT32_BITS, Linear, ProfiledBlock
from edge_agent.planning.operation_costs import BlockCosts, BlockSeconds, CodecCosts, Message
from edge_agent.planning.placement_simulator import PlacementRun, simulate_placement, steady_step_seconds
from edge_agent.planning.plan import Plan
from edge_agent.planning.planners.accurate import accurate
from edge_agent.planning.planners.greedy import greedy
from edge_agent.planning.planners.plan import Planner
from edge_agent.planning.planners.registry import PLANNERS, TWO_WORKERS, first_layout, planned
from edge_agent.planning.profile import (
    SCHEMA,
    MeasuredLink,
    MessageSeconds,
    Profile,
    WorkerProfile,
    load_profile,
    no_times,
    pair_profile,
    parse_profile,
    profile_to_json,
    with_batch_size,
)
from edge_agent.planning.profile_operations import layout_tasks, measured_rates
from edge_agent.planning.rates import Rates, parse_rate, parse_seconds
from edge_agent.planning.runs.comparison import Setting, compare
from edge_agent.planning.runs.simulator import PROBE_SECONDS, Run, simulate
from edge_agent.planning.search import best, best_order, costed, most_exact
from edge_agent.planning.space import SearchSpace
from edge_agent.planning.step_tasks import step_tasks
from edge_agent.planning.tasks import StepTasks
from edge_agent.planning.trace_files import load_trace
from edge_agent.planning.traces import LinkTrace, Trace

__all__ = [
    "FLOAT32_BITS",
    "PLANNERS",
    "PROBE_SECONDS",
    "SCHEMA",
    "TWO_WORKERS",
    "BlockCosts",
    "BlockRange",
    "BlockSeconds",
    "CodecCosts",
    "Conditions",
    "Decision",
    "Engine",
    "EngineConfig",
    "Layout",
    "Linear",
    "LinkTrace",
    "Loads",
    "MeasuredLink",
    "Message",
    "MessageSeconds",
    "Observation",
    "Outcome",
    "Parts",
    "PlacementRun",
    "Plan",
    "Planner",
    "Profile",
    "ProfiledBlock",
    "Question",
    "Rates",
    "Reason",
    "Run",
    "SearchSpace",
    "Setting",
    "StepTasks",
    "Times",
    "Trace",
    "Usual",
    "WorkerProfile",
    "accurate",
    "best",
    "best_order",
    "compare",
    "conditions_of",
    "costed",
    "feature_routes",
    "first_layout",
    "greedy",
    "layout_of",
    "layout_tasks",
    "load_profile",
    "load_trace",
    "loads_of",
    "measured_rates",
    "most_exact",
    "no_times",
    "pair_profile",
    "parse_profile",
    "parse_rate",
    "parse_seconds",
    "parts_of",
    "pipeline_seconds",
    "planned",
    "profile_to_json",
    "ranked",
    "simulate",
    "simulate_placement",
    "simulated_seconds",
    "stacked",
    "steady_seconds",
    "steady_step_seconds",
    "step_tasks",
    "with_batch_size",
]
